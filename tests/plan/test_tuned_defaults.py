# SPDX-License-Identifier: Apache-2.0
"""Tuned defaults where the spec is silent: each rule, and that none overrides a value of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.facts.deepspeed_version import resolve_target
from harness.facts.model_lookup import find_model
from harness.gates import check_run
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.planner import make_plan
from harness.plan.settings.plan_settings import settings_of
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.run.tuned_default import TunedDefault
from harness.spec.deepspeed_mapping import spec_field_of
from harness.spec.run_spec import RunSpec
from harness.spec.spec_loader import load_spec
from tests.support.plan_inputs import TINY, offload, run_of

ROOT = Path(__file__).parents[2]
ZERO = "zero_optimization."


def chosen(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Key below `zero_optimization` -> value, of every choice for DeepSpeed."""
    run = with_tuned_defaults(run_of(*args, **{"tuned_defaults": True, **kwargs}))
    return {c.key.removeprefix(ZERO): c.value for c in run.tuned_defaults or () if not c.ours}


LAYER = 855_654_400


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, {}),
        (1, {"reduce_bucket_size": 50_000_000}),
        (2, {"reduce_bucket_size": 50_000_000}),
        (
            3,
            {
                "reduce_bucket_size": 50_000_000,
                "leaf_module.classes": ["LlamaDecoderLayer"],
                "stage3_param_persistence_threshold": 0,
                "stage3_prefetch_bucket_size": LAYER,
                "stage3_max_reuse_distance": 2 * LAYER,
                "stage3_max_live_parameters": 2 * LAYER,
            },
        ),
    ],
)
def test_by_stage(stage: int, expected: dict[str, Any]) -> None:
    assert chosen(zero={"stage": stage}) == expected


LAYER_2_7B, WORDS_2_7B = 202_383_360, 131_072_000
WRITTEN = {"stage": 3, "stage3_max_reuse_distance": 4 * LAYER}


@pytest.mark.parametrize(
    ("model", "sections", "live"),
    [
        ("llama-3.1-70b", {}, 2 * LAYER),
        ("llama-3.1-70b", {"zero": WRITTEN}, 4 * LAYER + 128_256 * 8192),  # three layers and the embedding stay
        ("llama-3.1-70b", {"train": {"gradient_checkpointing": False}}, 2 * LAYER),
        ("llama-3.1-8b", {}, None),  # four layers are less than the default
        ("meta-llama/Llama-2-7b-hf", {}, 6 * LAYER_2_7B + WORDS_2_7B),  # five layers and the embedding stay gathered
        ("llama-3.2-1b", {}, 14 * 60_821_504 + 262_668_288),  # its head is its embedding
        ("llama-3.1-70b", {"zero": {"stage": 3, "stage3_max_live_parameters": 1}}, None),
        ("llama-3.1-70b", {"zero": {"stage": 3, "stage3_prefetch_bucket_size": 0}}, None),
        ("llama-3.1-70b", {"model": {"lora": {"r": 8}}}, None),
        ("llama-3.1-70b", {"parallel": {"sequence_parallel_size": 8}}, 2 * LAYER),
        ("llama-3.1-70b", {"zero": offload("cpu", "nvme")}, None),
        ("mistralai/Mixtral-8x7B-v0.1", {}, None),
    ],
    ids=str,
)
def test_there_is_room_for_the_next_layer(model: str, sections: dict[str, Any], live: int | None) -> None:
    """Beside a layer gathered as one and what the reuse distance keeps: `test_gathers_ahead.py` counts it."""
    assert chosen(model, **sections).get("stage3_max_live_parameters") == live


def test_layers_gathered_in_parts_have_a_smaller_prefetch() -> None:
    assert chosen(model={"lora": {"r": 8}})["stage3_prefetch_bucket_size"] == 250_000_000


def test_small_models_have_small_buckets() -> None:
    layer = find_model(None, TINY).facts
    assert layer is not None
    assert chosen(TINY)["reduce_bucket_size"] == 1_000_000
    assert (
        chosen(TINY, zero={"stage": 3}, model={"config": {**TINY, "hidden_size": 1024, "intermediate_size": 4096}})[
            "stage3_prefetch_bucket_size"
        ]
        > 10_000_000
    )


@pytest.mark.parametrize(
    "where", [{"zero": {"stage": 3}}, {"zero": {"stage": 1}}, {"zero": offload("nvme", "nvme")}], ids=str
)
def test_what_the_user_wrote_stays(where: dict[str, Any]) -> None:
    """In the spec's own section where it has a field, or as DeepSpeed's key."""
    first = with_tuned_defaults(run_of(tuned_defaults=True, **where)).tuned_defaults
    assert first
    for choice in first:
        if choice.ours:
            silenced = with_tuned_defaults(run_of(tuned_defaults=True, **where, train={"loss_chunk_size": 0}))
            assert choice.key not in {c.key for c in silenced.tuned_defaults or ()}
            continue
        *path, name = choice.key.removeprefix(ZERO).split(".")
        block: Any = choice.default
        for part in reversed([*path, name]):
            block = {part: block}
        run = with_tuned_defaults(run_of(tuned_defaults=True, **where, deepspeed={"zero_optimization": block}))
        assert choice.key not in {c.key for c in run.tuned_defaults or ()}
        at: Any = render_ds_config(run).config["zero_optimization"]
        for part in (*path, name):
            at = at[part]
        assert at == choice.default
        if not path and name in type(run.spec.zero).model_fields:
            named = {"zero": {**where["zero"], name: choice.default}}
            assert choice.key not in {
                c.key for c in with_tuned_defaults(run_of(tuned_defaults=True, **named)).tuned_defaults or ()
            }


def test_one_key_turns_all_off() -> None:
    run = with_tuned_defaults(run_of(tuned_defaults=False))
    assert run.tuned_defaults == ()
    assert render_ds_config(run).config == render_ds_config(run_of(tuned_defaults=True)).config


def test_a_deepspeed_json_means_its_defaults() -> None:
    run = run_of(tuned_defaults=True)
    assert with_tuned_defaults(resolve_run(run.spec, world_size=8, kind="deepspeed-json")).tuned_defaults == ()


def test_gradients_are_reduced_as_by_default() -> None:
    """To their owners alone would be half the bytes, and was slower on four ranks (`benchmarks/LOG.md`)."""
    assert "use_multi_rank_bucket_allreduce" not in chosen(zero={"stage": 2})


def test_experts_are_not_gathered_with_their_layer() -> None:
    mixture = chosen("mistralai/Mixtral-8x7B-v0.1")
    assert "stage3_prefetch_bucket_size" in mixture
    assert "leaf_module.classes" not in mixture
    assert "stage3_param_persistence_threshold" not in mixture
    assert "leaf_module.classes" not in chosen(zero=offload("cpu", "nvme"))


def test_states_on_nvme_have_small_sub_groups() -> None:
    assert chosen(zero=offload("nvme"))["sub_group_size"] == 100_000_000
    assert "sub_group_size" not in chosen(zero=offload("cpu"))


def test_choices_reach_the_json_the_plan_and_the_ranks() -> None:
    run = with_tuned_defaults(run_of(tuned_defaults=True))
    config = render_ds_config(run)
    for choice in run.tuned_defaults or ():
        assert choice.ours or config.reasons[choice.key] == choice.provenance
        assert choice.reason in choice.provenance
    again = ResolvedRun.from_json(json.loads(json.dumps(run.to_json())))
    assert again.tuned_defaults == run.tuned_defaults
    assert render_ds_config(again).json_text == config.json_text
    settings, plain = settings_of(run), settings_of(run_of())
    assert settings is not None
    assert plain is not None
    assert (settings.reduce_bucket_size, settings.leaf_decoder_layers, settings.max_reuse_distance) == (
        50_000_000,
        True,
        2 * LAYER,
    )
    assert (plain.reduce_bucket_size, plain.leaf_decoder_layers, plain.max_reuse_distance) == (
        500_000_000,
        False,
        1_000_000_000,
    )


def test_the_plan_tells_the_difference() -> None:
    at_3 = {
        d.tuned_default.key.removeprefix(ZERO): d
        for d in make_plan(run_of("llama-3.1-8b", tuned_defaults=True)).tuned_defaults_impact
    }
    assert at_3["reduce_bucket_size"].gpu_bytes < -800_000_000
    assert at_3["stage3_prefetch_bucket_size"].gpu_bytes == 0, "at the loss no room is left to prefetch"
    assert at_3["stage3_prefetch_bucket_size"].step_seconds < 0


TENSOR: dict[str, Any] = {"parallel": {"tensor_parallel_size": 2}, "zero": {"stage": 1}}


@pytest.mark.parametrize(
    ("model", "sections", "tokens"),
    [
        ("llama-3.1-8b", {}, 512),
        ("meta-llama/Llama-2-7b-hf", {}, 2048),
        ("llama-3.1-8b", {"data": {"max_length": 512}}, None),  # it would be one chunk
        ("llama-3.1-8b", {"precision": {"bf16": False, "fp16": True}}, None),
        ("llama-3.1-8b", {"train": {"torch_compile": True}}, None),
        ("llama-3.1-8b", TENSOR, 1024),  # half the words
        ("llama-3.1-8b", {**TENSOR, "deepspeed": {"tensor_parallel": {"preset_model": "llama"}}}, 512),
        ("llama-3.2-1b", TENSOR, 1024),  # its head is its embedding
        ("llama-3.2-1b", {**TENSOR, "deepspeed": {"tensor_parallel": {"vocab_parallel_lm_head": False}}}, 512),
        ("llama-3.1-8b", {"parallel": {"pipeline_parallel_size": 2}, "zero": {"stage": 1}}, None),
        ("llama-3.1-8b", {"parallel": {"sequence_parallel_size": 2}}, 512),
        ("gemma-2-9b", {}, None),
        ("llama-3.1-8b", {"launch": {"patches": {"chunked-loss": "off"}}}, None),
    ],
    ids=str,
)
def test_the_loss_is_cut_where_that_saves_memory(model: str, sections: dict[str, Any], tokens: int | None) -> None:
    run = with_tuned_defaults(run_of(model, tuned_defaults=True, **sections))
    assert run.loss_chunk_size == (tokens or 0)
    assert "loss_chunk" not in render_ds_config(run).json_text


def test_the_plan_has_logits_of_a_chunk() -> None:
    """4,096 tokens of 128,256 words: 12 bytes a token and word without chunks, in bf16."""
    cut, whole = make_plan(run_of("llama-3.1-8b", tuned_defaults=True)), make_plan(run_of("llama-3.1-8b"))
    assert cut.memory is not None
    assert whole.memory is not None

    def logits(memory: MemoryEstimate) -> int:
        return max(row.bytes for row in memory.items if row.kind == "logits")

    assert logits(whole.memory) > 12 * 128_256 * 4096
    assert logits(cut.memory) < 6 * 128_256 * 512 + 4 * 128_256 * 4096 + (1 << 28)
    assert cut.memory.gpu_peak < whole.memory.gpu_peak
    settings = {"train": {"loss_chunk_size": 512}, "launch": {"patches": {"chunked-loss": "off"}}}
    switched_off = make_plan(run_of("llama-3.1-8b", **settings)).memory
    assert switched_off is not None
    assert logits(switched_off) == logits(whole.memory)


def test_a_tensor_rank_has_logits_of_its_own_words() -> None:
    def logits(ranks: int, **more: Any) -> int:
        sections = {"parallel": {"tensor_parallel_size": ranks}, "zero": {"stage": 1}, **more}
        memory = make_plan(run_of("llama-3.1-8b", train={"loss_chunk_size": 512}, **sections)).memory
        assert memory is not None
        return max(row.bytes for row in memory.items if row.kind == "logits")

    of_words = (6 * 512 + 4 * 4096) * 128_256  # logits of a chunk, and the gradient of the head
    assert logits(1) - logits(2) == of_words // 2
    assert logits(2) - logits(4) == of_words // 4
    assert logits(4, deepspeed={"tensor_parallel": {"preset_model": "llama"}}) == logits(1)


def test_nothing_is_planned_without_ranks() -> None:
    assert (
        make_plan(run_of(tuned_defaults=True, ranks=None, cluster={"gpus_per_node": None})).tuned_defaults_impact == ()
    )


@pytest.mark.parametrize("file", sorted((ROOT / "ds_configs").glob("*.yaml")), ids=lambda file: file.stem)
def test_gates_let_the_chosen_settings_through(file: Path) -> None:
    """Written into the spec by hand, they bring no finding that the spec does not have without them."""
    loaded = load_spec(str(file), (), resolve_target())
    assert loaded.spec is not None
    assert loaded.source is not None
    run = with_tuned_defaults(resolve_run(loaded.spec, world_size=8), ROOT)
    before = {f.gate for f in check_run(run, loaded.source).findings}
    raw = loaded.spec.model_dump(mode="json", exclude_unset=True)
    for choice in run.tuned_defaults or ():
        if not choice.ours:
            _put(raw, choice)
    written = load_spec(str(file), (), resolve_target(), text=yaml.safe_dump(raw, sort_keys=False))
    assert written.spec is not None
    assert written.source is not None
    findings = [*written.findings, *check_run(resolve_run(written.spec, world_size=8), written.source).findings]
    assert [f for f in findings if f.gate not in before and f.severity != "info"] == []
    assert RunSpec.model_validate(raw) == written.spec


def _put(section: dict[str, Any], choice: TunedDefault) -> None:
    key = tuple(choice.key.split("."))
    *path, name = spec_field_of(key) or ("deepspeed", *key)
    for part in path:
        section = section.setdefault(part, {})
    section[name] = choice.value


def test_an_optimizer_on_nvme_is_swapped_beside_the_computation() -> None:
    """Three sub-groups are in flight, each with the optimizer's states, the master weights and the gradient."""
    section = "offload_optimizer."
    adam = chosen(zero=offload("nvme"))
    assert [adam[section + key] for key in ("pipeline_read", "pipeline_write", "buffer_count")] == [True, True, 12]
    assert chosen(zero=offload("nvme"), optimizer={"type": "lion"})[section + "buffer_count"] == 12
    assert chosen(zero=offload("nvme"), optimizer={"type": "adagrad"})[section + "buffer_count"] == 9
    assert not any(key.startswith(section) for key in chosen(zero=offload("cpu")))
    large = {**offload("nvme"), "sub_group_size": 1_000_000_000}
    assert not any(key.startswith(section) for key in chosen(zero=large))


def test_swapping_that_is_chosen_is_what_the_plan_counts() -> None:
    settings = settings_of(with_tuned_defaults(run_of(tuned_defaults=True, zero=offload("nvme"))))
    assert settings is not None
    assert (settings.pipeline_read, settings.pipeline_write, settings.optimizer_buffers) == (True, True, 12)
