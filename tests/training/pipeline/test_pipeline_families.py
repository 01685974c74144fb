# SPDX-License-Identifier: Apache-2.0
"""Every family that is cut into pipeline stages equals the whole model: at the start, over steps, in evaluation.

One job of 2 forked ranks, two of 4, of which one has two tensor ranks in each stage; about 15 s each on a quiet
machine.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.facts.model_lookup import facts_from_config
from harness.facts.pipeline_support import layer_class_names
from harness.plan.memory.zero_partitions import partition_model
from harness.plan.settings.plan_settings import settings_of
from harness.runtime.pipeline.parameter_names import pipeline_parts
from tests.support.training.forked_ranks import ForkedRanks
from tests.training.jobs.pipeline_families import FAMILIES, WAYS, make_run

JOB = Path(__file__).parents[1] / "jobs" / "pipeline_families.py"
BOUND = 2e-6
"""fp32: seen are 2e-7 (loss) and 1e-6 (norm)."""


Layout = tuple[int, int]


@pytest.fixture(scope="module", params=[(2, 1), (4, 1), (4, 2)], ids=["pipeline", "pipeline-data", "tensor-pipeline"])
def layout(request: pytest.FixtureRequest) -> Layout:
    """Ranks, and the tensor degree."""
    return cast("Layout", request.param)


@pytest.fixture(scope="module")
def found(layout: Layout, forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job has written."""
    folder = tmp_path_factory.mktemp("families")
    fields = dict(FAMILIES["llama"])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    model.save_pretrained(folder / "llama", max_shard_size="20KB")
    ranks, tensor = layout
    forked.run(JOB, str(folder / "out.json"), str(folder), str(tensor), ranks=ranks)
    return dict(json.loads((folder / "out.json").read_text()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pipeline_starts_from_the_weights_of_the_whole_model(found: dict[str, Any], family: str) -> None:
    assert found[family]["start"] == [[]] * len(found[family]["start"])


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_norms_and_evaluation_are_those_of_the_whole_model(found: dict[str, Any], family: str) -> None:
    gaps = found[family]
    assert gaps["loss"] < BOUND
    assert gaps["norm"] < 10 * BOUND
    assert gaps["eval"] < BOUND


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_has_the_elements_of_the_rank_with_most(found: dict[str, Any], layout: Layout, family: str) -> None:
    ranks, tensor = layout
    run = make_run(family, {"config": FAMILIES[family]}, ranks, tensor)
    facts, settings = facts_from_config(FAMILIES[family]).facts, settings_of(run)
    assert facts is not None
    assert settings is not None
    planned = partition_model(facts, dataclasses.replace(settings, decay_groups=False))
    parameters, stepped = (max(rank[i] for rank in found[family]["held"]) for i in (0, 1))
    assert planned.total == parameters
    assert (planned.partition_size if settings.stage else planned.total) == stepped


@pytest.mark.parametrize("family", FAMILIES)
def test_layer_classes_are_those_of_the_model(family: str) -> None:
    """A `type:` pattern matches their names."""
    fields = dict(FAMILIES[family])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parts = pipeline_parts(config)
    names = [type(model.get_submodule(part.prefix)).__name__ if part.prefix else "Embedding" for part in parts]
    facts = facts_from_config(FAMILIES[family]).facts
    assert facts is not None
    assert names == layer_class_names(facts, 1)


def test_partition_methods_cut_differently(found: dict[str, Any]) -> None:
    assert found["llama"]["parts"] == [0, 3, 6]
    assert found["gpt2-tied"]["parts"] == [0, 4, 7]


def test_gradient_checkpointing_recomputes_in_stages(found: dict[str, Any]) -> None:
    recomputing = {name for name in FAMILIES if found[name]["recomputes"]}
    assert recomputing == {name for name, way in WAYS.items() if way.get("train", {}).get("gradient_checkpointing")}


def test_every_second_layer_recomputes_in_each_stage(found: dict[str, Any]) -> None:
    """Of three layers stage 0 has two: all three recompute, or one of each stage."""
    assert sorted(set(found["mistral-window"]["recomputed_layers"])) == [1, 2]
    assert set(found["phi3"]["recomputed_layers"]) == {1}


def test_a_rank_reads_the_tensors_of_its_own_layers_and_no_others(found: dict[str, Any]) -> None:
    read = found["pretrained"]["read"]
    first, last = read[0], read[-1]
    assert "model.embed_tokens.weight" in first
    assert "lm_head.weight" in last
    assert not set(first) & set(last)
    assert len(first) == len(set(first))
    assert len(set(first) | set(last)) == 3 + 3 * 9
    assert all(names in (first, last) for names in read)
