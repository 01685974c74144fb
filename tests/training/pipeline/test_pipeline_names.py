# SPDX-License-Identifier: Apache-2.0
"""The names that pipeline layers have in `transformers`: from the configuration alone, for every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.facts import model_table
from harness.runtime.pipeline.parameter_names import (
    pipeline_parts,
    tied_names,
    to_transformers_name,
    to_transformers_parameter,
)
from harness.runtime.pipeline.stack_check import check_stack
from tests.training.jobs.pipeline_families import FAMILIES


def test_the_table_has_the_families_that_are_compared() -> None:
    assert all(model_table.holds(fields["model_type"], "pipeline") for fields in FAMILIES.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_cover_every_weight_once(family: str) -> None:
    fields = dict(FAMILIES[family])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    named = []
    for layer, part in enumerate(pipeline_parts(config)):
        if part.prefix is not None:
            inner = model.get_submodule(part.prefix)
            named += [to_transformers_name(config, layer, f"module.{name}") for name, _ in inner.named_parameters()]
    assert sorted(named) == sorted(name for name, _ in model.named_parameters())
    assert set(tied_names(config)) == set(model.state_dict()) - set(named)


def test_names_of_a_pipeline_module() -> None:
    config = AutoConfig.for_model("llama", num_hidden_layers=2, tie_word_embeddings=True)
    given = to_transformers_parameter(config, "2.module.mlp.up_proj.weight")
    assert given == "model.layers.1.mlp.up_proj.weight"
    assert to_transformers_parameter(config, "tied_modules.embed.module.weight") == "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("gemma2", {}, "logits differ"),
        ("granite", {"embedding_multiplier": 12.0}, "logits differ"),
        ("llama4_text", {}, "`chunked_attention` have a mask that no stage makes"),
        ("mixtral", {"output_router_logits": True}, "a loss of all layers"),
        ("opt", {}, "by the usual names"),
        ("starcoder2", {"embedding_dropout": 0.1}, "drops elements of the embeddings"),
    ],
)
def test_what_is_no_plain_stack_is_refused(family: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refused:
        check_stack(AutoConfig.for_model(family, **fields), trust_remote_code=False)
    assert refused.value.findings[0].gate == "PP101"
    assert words in refused.value.findings[0].notes[0]


@pytest.mark.parametrize("family", ["arcee", "granite", "smollm3"])
def test_a_plain_stack_passes(family: str) -> None:
    check_stack(AutoConfig.for_model(family), trust_remote_code=False)
