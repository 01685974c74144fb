# SPDX-License-Identifier: Apache-2.0
"""Estimates of families without a formula against their exact totals. Needs nothing; milliseconds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.estimated_model import config_of_name
from harness.facts.model_catalogue import CATALOGUE
from harness.facts.model_families import FAMILIES
from harness.facts.model_lookup import BY_NAME, ModelLookup, facts_from_config, find_model
from harness.plan.memory.memory_estimate import ALLOCATED, GUESSED, estimate_memory
from tests.support.plan_inputs import settings

CONFIGS: list[tuple[dict[str, Any], int]] = [
    (
        {
            "model_type": "qwen3_5",
            "tie_word_embeddings": False,
            "text_config": {
                "model_type": "qwen3_5_text",
                "attention_bias": False,
                "full_attention_interval": 4,
                "head_dim": 256,
                "hidden_act": "silu",
                "hidden_size": 5120,
                "intermediate_size": 17408,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 48,
                "linear_value_head_dim": 128,
                "num_attention_heads": 24,
                "num_hidden_layers": 64,
                "num_key_value_heads": 4,
                "vocab_size": 248320,
            },
        },
        26895998464,
    ),
    (
        {
            "model_type": "qwen3_5_moe",
            "tie_word_embeddings": False,
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                "attention_bias": False,
                "full_attention_interval": 4,
                "head_dim": 256,
                "hidden_act": "silu",
                "hidden_size": 2048,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_value_head_dim": 128,
                "moe_intermediate_size": 512,
                "num_attention_heads": 16,
                "num_experts": 256,
                "num_experts_per_tok": 8,
                "num_hidden_layers": 40,
                "num_key_value_heads": 2,
                "shared_expert_intermediate_size": 512,
                "vocab_size": 248320,
            },
        },
        34660610688,
    ),
    (
        {
            "model_type": "glm_moe_dsa",
            "attention_bias": False,
            "first_k_dense_replace": 3,
            "hidden_act": "silu",
            "head_dim": 64,
            "hidden_size": 6144,
            "intermediate_size": 12288,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 2048,
            "moe_layer_freq": 1,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_attention_heads": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 78,
            "num_key_value_heads": 64,
            "q_lora_rank": 2048,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "tie_word_embeddings": False,
            "v_head_dim": 256,
            "vocab_size": 154880,
        },
        743911199232,
    ),
    (
        {
            "model_type": "mimo_v2_flash",
            "num_hidden_layers": 48,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 192,
            "v_head_dim": 128,
            "intermediate_size": 16384,
            "vocab_size": 152576,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
        },
        308778768832,
    ),
    (
        {
            "model_type": "exaone4",
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "tie_word_embeddings": False,
            "vocab_size": 102400,
        },
        9429069824,
    ),
    (
        {
            "model_type": "glm4",
            "attention_bias": True,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
            "vocab_size": 151552,
        },
        9400279040,
    ),
    (
        {
            "model_type": "starcoder2",
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_attention_heads": 24,
            "num_hidden_layers": 30,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "use_bias": True,
            "vocab_size": 49152,
        },
        3030371328,
    ),
    (
        {
            "model_type": "olmo",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "tie_word_embeddings": False,
            "vocab_size": 50304,
        },
        6888095744,
    ),
    (
        {
            "model_type": "olmoe",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "num_attention_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 16,
            "num_key_value_heads": 16,
            "tie_word_embeddings": False,
            "vocab_size": 50304,
        },
        13361612800,
    ),
    (
        {
            "model_type": "granitemoe",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "num_local_experts": 8,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        },
        37039116288,
    ),
    (
        {
            "model_type": "stablelm",
            "hidden_act": "silu",
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "tie_word_embeddings": False,
            "vocab_size": 50304,
        },
        2795443200,
    ),
    (
        {
            "model_type": "gptj",
            "activation_function": "gelu_new",
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "tie_word_embeddings": False,
            "vocab_size": 50400,
        },
        6050882784,
    ),
    (
        {
            "model_type": "persimmon",
            "hidden_act": "relu2",
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_attention_heads": 64,
            "num_hidden_layers": 36,
            "tie_word_embeddings": False,
            "vocab_size": 262144,
        },
        9397175296,
    ),
    (
        {
            "model_type": "internlm3",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 10240,
            "num_attention_heads": 32,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
            "vocab_size": 128512,
        },
        8804241408,
    ),
    (
        {
            "model_type": "apertus",
            "attention_bias": False,
            "hidden_act": "xielu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "tie_word_embeddings": False,
            "vocab_size": 131072,
        },
        6979596352,
    ),
    (
        {
            "model_type": "phimoe",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 6400,
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "tie_word_embeddings": False,
            "vocab_size": 32064,
        },
        41872793600,
    ),
    (
        {
            "model_type": "minicpm3",
            "attention_bias": False,
            "head_dim": 32,
            "hidden_act": "silu",
            "hidden_size": 2560,
            "intermediate_size": 6400,
            "kv_lora_rank": 256,
            "num_attention_heads": 40,
            "num_hidden_layers": 62,
            "num_key_value_heads": 40,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "tie_word_embeddings": True,
            "v_head_dim": 64,
            "vocab_size": 73448,
        },
        4073875968,
    ),
    (
        {
            "model_type": "gpt_neo",
            "activation_function": "gelu_new",
            "hidden_size": 2048,
            "num_heads": 16,
            "num_layers": 24,
            "tie_word_embeddings": True,
            "vocab_size": 50257,
        },
        1315575808,
    ),
    (
        {
            "model_type": "afmoe",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 1408,
            "num_attention_heads": 16,
            "num_dense_layers": 1,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 32,
            "num_key_value_heads": 16,
            "num_shared_experts": 2,
            "tie_word_embeddings": False,
            "vocab_size": 200192,
        },
        19232600000,
    ),
    (
        {
            "model_type": "exaone_moe",
            "first_k_dense_replace": 1,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "moe_intermediate_size": 1024,
            "num_attention_heads": 32,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "num_shared_experts": 1,
            "tie_word_embeddings": False,
            "vocab_size": 102400,
        },
        28550639616,
    ),
    (
        {
            "model_type": "solar_open",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "moe_intermediate_size": 1280,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_attention_heads": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
            "vocab_size": 196608,
        },
        102651793408,
    ),
    (
        {
            "model_type": "glm4_moe_lite",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 64,
            "n_shared_experts": 1,
            "num_attention_heads": 20,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 47,
            "num_key_value_heads": 20,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "tie_word_embeddings": False,
            "v_head_dim": 256,
            "vocab_size": 154880,
        },
        29943390976,
    ),
]
"""Published configurations and defaults of `transformers`, with the totals of its modules on the meta device."""
DENSE = {
    "model_type": "new",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "hidden_act": "silu",
}


@pytest.fixture(autouse=True)
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.hostinfo.model_probe.package_version", lambda _: None)


def estimate(config: dict[str, Any]) -> ModelLookup:
    return facts_from_config(config, build=True)


@pytest.mark.parametrize(("config", "total"), CONFIGS, ids=[config["model_type"] for config, _ in CONFIGS])
def test_an_estimate_is_close_to_the_exact_total(config: dict[str, Any], total: int) -> None:
    assert config["model_type"] not in FAMILIES
    lookup = estimate(config)
    assert lookup.facts is not None, lookup.why_not
    assert (lookup.facts.built, lookup.facts.estimated) == (True, True)
    assert "estimated from its sizes" in lookup.source
    assert lookup.facts.num_parameters == pytest.approx(total, rel=0.06 if lookup.facts.experts else 0.03)


def test_nothing_is_estimated_where_a_build_is_not_asked_for() -> None:
    assert facts_from_config(DENSE).facts is None


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_field_is_named(name: str) -> None:
    lookup = estimate({key: value for key, value in DENSE.items() if key != name})
    assert lookup.facts is None
    assert f"`{name}` is missing" in lookup.why_not


@pytest.mark.parametrize("changes", [{"conv_L_cache": 3}, {"hybrid_override_pattern": "M*"}, {"hidden_size": -1}])
def test_what_no_estimate_covers_is_refused(changes: dict[str, Any]) -> None:
    assert estimate({**DENSE, **changes}).facts is None


def test_fields_under_other_names_and_in_a_part_for_text_are_the_same() -> None:
    renamed = {"model_type": "new", "d_model": 64, "n_layers": 2, "n_heads": 4, "ffn_dim": 96, "vocab_size": 128}
    renamed["activation_function"] = "silu"
    nested = {"model_type": "outer", "text_config": {key: value for key, value in DENSE.items() if key != "model_type"}}
    counts = {facts.num_parameters for c in (DENSE, renamed, nested) if (facts := estimate(c).facts)}
    assert len(counts) == 1


def test_an_activation_without_a_gate_has_two_matrices() -> None:
    gated, plain = estimate(DENSE).facts, estimate({**DENSE, "hidden_act": "gelu", "tie_word_embeddings": False}).facts
    assert gated is not None
    assert plain is not None
    assert gated.num_parameters - plain.num_parameters == 2 * 64 * 96


def test_bitnet_has_a_gate_although_its_activation_has_none() -> None:
    """The total is that of transformers' BitNetForCausalLM with the defaults of its configuration, on the meta device."""
    config = {
        "model_type": "bitnet",
        "hidden_act": "relu2",
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_attention_heads": 20,
        "num_hidden_layers": 30,
        "num_key_value_heads": 5,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    }
    found = estimate(config).facts
    assert found is not None
    assert found.num_parameters == pytest.approx(2741155840, rel=0.001)


def test_kimi_k2_is_counted_as_deepseek_v3() -> None:
    lookup = facts_from_config({"model_type": "kimi_k2"})
    assert lookup.facts == facts_from_config({"model_type": "deepseek_v3"}).facts


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("/data/models/Quokka-9B-Chat/", 9),
        ("someone/numbat_33b_v2", 33),
        ("wombat-1.8b", 1.8),
        ("emu-180b-sft", 180),
        ("9.4b", 9.4),
        ("bilby-350m", 0.35),
    ],
)
def test_a_name_with_a_size_is_enough_for_a_plan(name: str, billions: float) -> None:
    found = find_model(name, by_name=True)
    assert found.facts is not None
    assert found.source.startswith(BY_NAME)
    assert found.facts.estimated
    assert found.facts.num_parameters == pytest.approx(billions * 1e9, rel=0.06)
    assert find_model(name).facts is None  # gates judge no model by its name


@pytest.mark.parametrize("name", ["quokka-chat", "quokka-8x7b", "quokka-30b-a3b", "quokka-moe-16b", "llama-3.1-80b"])
def test_a_name_without_a_size_with_experts_or_misspelt_is_not(name: str) -> None:
    assert config_of_name(name) is None
    assert find_model(name, by_name=True).facts is None


def test_a_folder_of_another_machine_is_the_model_of_its_name() -> None:
    found = find_model("../../weights/Meta-Llama-3-8B-Instruct", by_name=True)
    assert found.facts is not None
    assert (found.facts.num_parameters, found.source) == (
        8030261248,
        f"{BY_NAME}: `Meta-Llama-3-8B-Instruct` of the catalogue",
    )


def test_how_far_a_size_in_a_name_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence of `GUESSED` in `harness/plan/memory/memory_estimate.py`: all dense models with a size in the name."""
    monkeypatch.setattr("harness.facts.estimated_model.catalogue_config", lambda _: None)
    ratios = []
    for name, config in CATALOGUE.items():
        guess = config_of_name(f"someone/{name.rpartition('/')[2]}")
        known = facts_from_config(config, "x", build=False, estimate=True).facts
        if guess is not None and known is not None and not known.experts:
            guessed = facts_from_config(guess[0], "x", estimate=True).facts
            assert guessed is not None
            ratios.append(known.num_parameters / guessed.num_parameters)
    ratios.sort()
    assert len(ratios) > 100
    low, high = ratios[len(ratios) // 20], ratios[-len(ratios) // 20]
    assert (round(low, 2), round(high, 2)) == (0.97, 1.22)
    assert GUESSED.low <= ALLOCATED.low * low
    assert GUESSED.high >= ALLOCATED.high * high


@pytest.mark.parametrize("name", ["someone/quokka-13b", "numbat_7b", "other/emu-34b-sft"])
def test_the_range_of_a_guessed_model_is_wide(name: str) -> None:
    found = find_model(name, by_name=True).facts
    known = find_model("meta-llama/Llama-2-7b-hf").facts
    assert found is not None
    assert known is not None
    of_run = settings("meta-llama/Llama-2-7b-hf")
    assert [estimate_memory(m, of_run, None).allocated for m in (found, known)] == [GUESSED, ALLOCATED]
