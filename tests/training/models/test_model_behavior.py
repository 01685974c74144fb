# SPDX-License-Identifier: Apache-2.0
"""A small copy of a model says whether it is causal and keeps documents apart; the ranks refuse what does not."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.model_table import FIELDS
from harness.check.model_findings import check_model_kind
from harness.errors import UserError
from harness.facts import language_model, model_table
from harness.run.resolved_run import resolve_run
from harness.runtime.model_behavior import ask_copy, ask_model
from harness.runtime.models.objective_check import check_objective, check_own_model
from harness.spec.run_spec import RunSpec

ENCODERS = "bert big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta roberta-prelayernorm"
ENCODERS += " roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
OTHERS = "vit t5 clip wav2vec2 mt5 swin xlnet mistral3 siglip switch_transformers"
DECODERS = (
    "afmoe apertus arcee bart codegen ctrl doge exaone4 glm4_moe granitemoe helium jetmoe mamba minicpm3 olmoe phimoe"
)
DECODERS += " recurrent_gemma rwkv xglm youtu"
KNOWN = [name for name in model_table.read_table().types if model_table.holds(name, "causal")]
CAUSAL = [name for name in KNOWN if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
LEAKING = [name for name in CAUSAL if model_table.holds(name, "apart") is False]
APART = [name for name in CAUSAL if model_table.holds(name, "apart")]
PACKED = {"data": {"packing": True}}
NIGHTLY = os.environ.get("HARNESS_NIGHTLY") == "1"


def draw(names: list[str], count: int) -> list[str]:
    """All of them at night, else so many, drawn by the length of the list."""
    return names if NIGHTLY else sorted(random.Random(len(names)).sample(names, count))  # noqa: S311


@pytest.mark.parametrize("family", draw(ENCODERS.split(), 5))
def test_an_encoder_is_told_from_the_decoder_of_the_same_name(family: str) -> None:
    assert ask_model(AutoConfig.for_model(family)).causal is False
    assert ask_model(AutoConfig.for_model(family, is_decoder=True)).causal is True


@pytest.mark.parametrize("family", draw(OTHERS.split(), 5))
def test_what_is_no_language_model_is_none(family: str) -> None:
    assert ask_model(AutoConfig.for_model(family)).causal is False


@pytest.mark.parametrize("family", draw(DECODERS.split(), 5))
def test_a_decoder_is_one(family: str) -> None:
    assert ask_model(AutoConfig.for_model(family)).causal is True


def test_a_decoder_that_attends_both_ways_is_none() -> None:
    config = AutoConfig.for_model("gemma3_text", use_bidirectional_attention=True)
    assert ask_model(config).causal is False


@pytest.mark.parametrize("family", draw(LEAKING, 4))
def test_the_table_of_those_that_mix_documents(family: str) -> None:
    answers = ask_model(AutoConfig.for_model(family, **FIELDS.get(family, {})))
    assert (answers.causal, answers.apart) == (True, False), answers


@pytest.mark.parametrize("family", draw(APART, 6))
def test_the_table_of_those_that_keep_them_apart(family: str) -> None:
    answers = ask_model(AutoConfig.for_model(family, **FIELDS.get(family, {})))
    assert (answers.causal, answers.apart) == (True, True), answers


def of_mapping(*groups: str) -> set[str]:
    """The types of `transformers` that have a class in one of these mappings."""
    return {name for group in groups for name in getattr(modeling_auto, f"MODEL_FOR_{group}_MAPPING_NAMES")}


HAS_CLASS, MASKED, PAIRS = of_mapping("CAUSAL_LM"), of_mapping("MASKED_LM"), of_mapping("SEQ_TO_SEQ_CAUSAL_LM")
COMPOSITE = of_mapping("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
DRAWN = [
    *((name, True) for name in draw(sorted(HAS_CLASS & {*CAUSAL} - MASKED - PAIRS), 6)),
    *((name, False) for name in draw(sorted(HAS_CLASS & MASKED - PAIRS), 4)),
    *((name, False) for name in draw(sorted(HAS_CLASS & PAIRS - COMPOSITE), 4)),
    *((name, False) for name in draw(sorted({*CONFIG_MAPPING} - HAS_CLASS - COMPOSITE), 6)),
]


@pytest.mark.parametrize(("family", "is_causal"), DRAWN)
def test_drawn_types_are_told_apart_before_a_launch(
    family: str, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fields that `save_pretrained` writes; in this process, where a command asks in one of its own."""
    monkeypatch.setattr(language_model, "ask_installed_model", lambda fields: ask_model(AutoConfig.for_model(**fields)))
    fields = AutoConfig.for_model(family, **FIELDS.get(family, {})).to_dict()
    found = check_model_kind(RunSpec.model_validate({"model": {"config": fields}}))
    assert ([] if is_causal else ["MD164"]) == [finding.gate for finding in found]


class Leaky(torch.nn.Module):
    """A model that attends within documents, and passes something on by one other way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.embed, self.head = way, torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **_: Any) -> Any:
        rows, length = input_ids.shape
        positions = torch.arange(length).expand(rows, length) if position_ids is None else position_ids
        document = (positions == 0).cumsum(1)
        hidden = self.embed(input_ids) + torch.sin(positions)[..., None]
        seen = torch.ones(length, length).tril()[None] * (document[:, :, None] == document[:, None, :])
        out = hidden + (seen @ hidden) / seen.sum(-1, keepdim=True)
        before = torch.nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
        if self.way == "convolution":
            out = out + 0.01 * before
        elif self.way == "state":
            out = out + 0.01 * before.cumsum(1)
        elif self.way == "rows":
            out = out + 0.01 * hidden.sum((0, 1)) * (position_ids is not None)
        elif self.way == "positions":
            out = out + torch.sin(torch.arange(length) * 1.0)[None, :, None]
        elif self.way == "future":
            out = out + 0.001 * torch.nn.functional.pad(hidden, (0, 0, 0, 1))[:, 1:]
        return type("Output", (), {"logits": self.head(out)})


@pytest.mark.parametrize("way", ["", "convolution", "state", "rows", "positions", "future"])
def test_a_leak_that_hides_is_found(way: str) -> None:
    answers = ask_copy(Leaky(way))
    assert answers.causal is (way != "future")
    assert answers.apart is (way == ""), answers


def test_the_answer_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    ask_model(AutoConfig.for_model("gpt2"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("family", "fields", "spec", "gate"),
    [
        ("bert", {}, {}, "MD164"),
        ("bert", {"is_decoder": True}, PACKED, "MD128"),
        ("qwen3_5", {}, PACKED, "MD128"),
        ("qwen3_5", {}, {}, ""),
        ("llama", {}, PACKED, ""),
        ("arcee", {}, PACKED, ""),
        ("bloom", {}, {"parallel": {"tensor_parallel_size": 2}}, "TP027"),
        ("jamba", {}, {"parallel": {"sequence_parallel_size": 2}}, "SQ101"),
        ("llama", {}, {"parallel": {"sequence_parallel_size": 2, "tensor_parallel_size": 2}}, ""),
        ("llama", {}, {"parallel": {"tensor_parallel_size": 2}, "model": {"trust_remote_code": True}}, "TP027"),
    ],
)
def test_the_ranks_refuse_the_same(family: str, fields: dict[str, Any], spec: dict[str, Any], gate: str) -> None:
    model = {"config": {"model_type": family}, **spec.get("model", {})}
    run = resolve_run(RunSpec.model_validate({**spec, "model": model}), world_size=4)
    config = AutoConfig.for_model(family, **fields)
    if model.get("trust_remote_code"):
        config.auto_map = {"AutoModelForCausalLM": "modeling.Own"}
    if not gate:
        check_objective(run, config)
        return
    with pytest.raises(UserError) as refused:
        check_objective(run, config)
    assert refused.value.findings[0].gate == gate


@pytest.mark.parametrize("way", ["", "state"])
def test_the_model_of_a_plugin_is_asked_about_packing(way: str) -> None:
    run = resolve_run(RunSpec.model_validate({"model": {"config": {"model_type": "llama"}}, **PACKED}))
    model: Any = Leaky(way)
    if not way:
        check_own_model(run, model)
        assert model.training
        return
    with pytest.raises(UserError) as refused:
        check_own_model(run, model)
    assert (refused.value.findings[0].gate, refused.value.findings[0].key) == ("MD128", "data.packing")


@pytest.mark.parametrize(
    ("family", "fields", "apart"),
    [
        ("glm_moe_dsa", {}, True),  # its indexer scores the tokens that the mask allows
        ("minimax_m3_vl_text", {"layer_types": ["full_attention", "minimax_m3_sparse"] * 30}, False),  # blocks of a row
    ],
)
def test_attention_that_chooses_among_tokens_does_so_in_the_copy(
    family: str, fields: dict[str, Any], apart: bool
) -> None:
    answers = ask_model(AutoConfig.for_model(family, **fields))
    assert (answers.causal, answers.apart) == (True, apart), answers
