# SPDX-License-Identifier: Apache-2.0
"""The names that pipeline layers have in `transformers`: from the configuration alone, for every family."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.errors import UserError
from harness.facts import pipeline_support
from harness.runtime.pipeline.layer_layouts import LAYOUTS
from harness.runtime.pipeline.parameter_names import (
    pipeline_parts,
    tied_names,
    to_transformers_name,
    to_transformers_parameter,
)
from tests.training.jobs.pipeline_families import FAMILIES


def test_the_gate_knows_the_families_of_the_runtime() -> None:
    assert set(pipeline_support.PIPELINE_FAMILIES) == set(LAYOUTS)


def test_every_family_is_tried() -> None:
    assert {fields["model_type"] for fields in FAMILIES.values()} == set(LAYOUTS)


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


def test_another_family_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        pipeline_parts(AutoConfig.for_model("mixtral"))
    assert refused.value.findings[0].gate == "PP101"
