# SPDX-License-Identifier: Apache-2.0
"""Parameters that stay gathered of leaf modules, as counted on two ranks. Needs nothing; milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.facts.model_lookup import find_model
from harness.plan.memory.gathered_items import embedding_numel_kept_gathered, num_layers_kept_gathered
from harness.plan.memory.model_states_zero3 import stage3_items
from harness.plan.memory.zero_partitions import partition_model
from tests.support.plan_inputs import memory_of_run, plan_of, settings

LAYER = 855_654_400


@pytest.mark.parametrize(
    ("model", "reuse", "layers", "embeddings"),
    [
        ("llama-3.1-70b", 2 * LAYER, 1, 0),  # the head alone is 1.23 layers
        ("llama-3.1-70b", LAYER, 0, 0),
        ("llama-3.1-70b", 0, 0, 0),
        ("llama-3.1-8b", 10**9, 3, 0),
        ("meta-llama/Llama-2-7b-hf", 10**9, 5, 32_000 * 4096),
        ("meta-llama/Llama-2-7b-hf", 10**12, 32, 32_000 * 4096),
        ("llama-3.2-1b", 10**9, 13, 128_256 * 2048),
        ("llama-3.2-1b", 0, 0, 0),
    ],
)
def test_what_is_kept(model: str, reuse: int, layers: int, embeddings: int) -> None:
    facts = find_model(model).facts
    assert facts is not None
    assert num_layers_kept_gathered(facts, reuse) == layers
    assert embedding_numel_kept_gathered(facts, reuse) == embeddings


def test_the_plan_has_it() -> None:
    """Of Llama-2-7B at the loss: the head, five layers and the embedding, and a part of the next layer ahead."""
    rows = memory_of_run("meta-llama/Llama-2-7b-hf", tuned_defaults=True).items
    layer, words, norm = 202_383_360, 32_000 * 4096, 4096
    gathered = next(row.bytes for row in rows if row.kind == "gathered" and row.phases == ("forward",))
    assert 0 <= gathered - 2 * (5 * layer + 2 * words + norm) < 2 * layer


def test_a_layer_as_one_module_holds_its_gradients() -> None:
    """Its parameters have no hook of their own."""
    model, plain = plan_of("mistralai/Mistral-7B-v0.1").model, settings("mistralai/Mistral-7B-v0.1")
    assert model is not None
    leaf = replace(plain, leaf_decoder_layers=True, prefetch_bucket_size=0)
    sizes = []
    for chosen in (plain, leaf):
        items = stage3_items(chosen, partition_model(model, chosen))
        at_the_end = (item for item in items if "layer gradients" in item.moments)
        sizes.append({item.kind: item.bytes for item in at_the_end if item.tier == "gpu"})
    assert [size["gradient_largest"] for size in sizes] == [2 * 32_000 * 4096, 2 * model.largest_layer_parameters]
    assert sizes[0]["temporary"] == sizes[1]["temporary"] > 0, "a bucket that is full is copied"


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
def test_frozen_parameters_of_such_a_layer_have_no_gradients(targets: Any) -> None:
    """DeepSpeed's leaf hook fills the gradients of what its optimizer has (stage3.py `leaf_parameters`)."""
    adapters = {"lora": {"r": 16, "target_modules": targets}}
    leaf = replace(settings("mixtral-8x7b", model=adapters), leaf_decoder_layers=True)
    model = plan_of("mixtral-8x7b").model
    assert model is not None
    partitions = partition_model(model, leaf)
    assert partitions.leaf_layer * model.num_layers == partitions.total < 10**9
    everything = partition_model(model, replace(settings("mixtral-8x7b"), leaf_decoder_layers=True))
    assert everything.leaf_layer == model.largest_layer_parameters
