# SPDX-License-Identifier: Apache-2.0
"""A run made small: what stays, what is changed, what fits. Needs nothing, seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.check.check_file import check_file
from harness.facts.layer_keys import LAYER_KEYS, reduce_layers
from harness.facts.model_catalogue import catalogue_config
from harness.facts.model_lookup import facts_from_config
from harness.findings import Finding
from harness.rehearsal import small_model_config
from harness.rehearsal.small_run import AvailableResources, SmallRun, shrink_degrees, shrink_run
from harness.run.resolved_run import ResolvedRun
from harness.spec.yaml_text import spec_as_yaml

CONFIGS = Path(__file__).parents[2] / "ds_configs"
RECIPES = sorted(
    path for pattern in ("llama-3.1-70b-zero3-*.yaml", "qwen2.5-72b-zero3-*.yaml") for path in CONFIGS.glob(pattern)
)
FILES = {"model": "/r/model", "data": "/r/data/*.jsonl", "nvme": "/r/nvme"}
CPU = AvailableResources(0, None, 20 << 30, 100 << 30)
ONE_NODE = AvailableResources(8, "H100-80GB", 1900 << 30, 8000 << 30)
ONE_H200 = AvailableResources(1, "H200-141GB", 1000 << 30, 2000 << 30)


def run_of(path: Path) -> ResolvedRun:
    run = check_file(str(path)).run
    assert run is not None
    return run


def small_run_of(path: Path, room: AvailableResources) -> SmallRun:
    run = run_of(path)
    small = shrink_run(run, catalogue_config(run.spec.model.name_or_path or "") or {}, room, FILES)
    assert isinstance(small, SmallRun), small
    return small


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_on_a_cpu_every_flagship_recipe_takes_the_same_ways_narrower(path: Path) -> None:
    run, small = run_of(path), small_run_of(path, CPU)
    zero, spec = run.spec.zero, small.plan.run.spec
    assert small.plan.model is not None
    assert 10**6 < small.plan.model.num_parameters < 5 * 10**7
    assert small.plan.run.parallel_dims.world_size == 2
    assert spec.zero.stage == zero.stage
    for name in ("offload_optimizer", "offload_param"):
        offload, small_offload = getattr(zero, name), getattr(spec.zero, name)
        assert (offload.device if offload else None) == (small_offload.device if small_offload else None)
        assert small_offload is None or small_offload.nvme_path in (None, FILES["nvme"])
    assert spec.train.gradient_checkpointing == run.spec.train.gradient_checkpointing
    assert spec.precision == run.spec.precision
    assert spec.optimizer == run.spec.optimizer
    assert (spec.parallel.sequence_parallel_size > 1) == (run.spec.parallel.sequence_parallel_size > 1)
    assert len(small.plan.memory.items if small.plan.memory else ()) > 5


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_what_is_left_passes_every_gate(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(spec_as_yaml(small_run_of(path, CPU).raw_spec))
    report = check_file(str(file)).report
    assert report.ok, report.findings


@pytest.mark.parametrize("path", [p for p in RECIPES if "h200" not in p.stem], ids=lambda p: p.stem)
def test_on_eight_devices_nothing_is_narrower_and_all_layers_fit(path: Path) -> None:
    small, run = small_run_of(path, ONE_NODE), run_of(path)
    keys = {change.key for change in small.changes}
    assert not {"model.hidden_size", "data.max_length", "train.per_device_train_batch_size"} & keys
    assert not any(key.startswith(("zero.reduce", "zero.sub", "zero.stage3", "parallel.")) for key in keys)
    assert small.plan.run.parallel_dims.world_size == run.parallel_dims.world_size
    assert small.plan.fit.fits is not False


@pytest.mark.parametrize("path", [p for p in RECIPES if "long" not in p.stem], ids=lambda p: p.stem)
def test_on_one_device_a_rank_has_its_share_of_the_layers(path: Path) -> None:
    """An eighth of the ranks, at most an eighth of the layers: a rank's shards of them are as large as in the run."""
    small = small_run_of(path, ONE_H200)
    layers = small_model_config.find_value(small.config, LAYER_KEYS)
    assert layers is not None
    assert 1 <= layers <= 10
    assert small.config["hidden_size"] == 8192
    assert {change.key for change in small.changes if change.key.startswith("model.")} == {
        "model.num_hidden_layers",
        "model.name_or_path",
    }


def test_degrees_are_halved_until_there_are_devices() -> None:
    run = run_of(CONFIGS / "llama-3.1-70b-zero3-long-context.yaml")
    assert shrink_degrees(run, AvailableResources(4, "H100-80GB", 1 << 40, 1 << 40)) == {
        "tensor": 1,
        "pipeline": 1,
        "sequence": 4,
    }
    small = small_run_of(
        CONFIGS / "llama-3.1-70b-zero3-long-context.yaml", AvailableResources(4, "H100-80GB", 2 << 40, 8 << 40)
    )
    assert small.plan.run.spec.data.max_length == 65536 // 2  # as many tokens a rank
    assert small.plan.run.parallel_dims.world_size == 4


def test_too_little_of_everything_is_said_with_what_is_needed() -> None:
    run = run_of(CONFIGS / "llama-3.1-70b-zero3-cpu-offload.yaml")
    config = catalogue_config("llama-3.1-70b") or {}
    finding = shrink_run(run, config, AvailableResources(1, "H100-80GB", 8 << 30, 10 << 30), FILES)
    assert isinstance(finding, Finding)
    assert finding.gate == "MM009"
    assert "the smallest has 2,957,0" in finding.notes[0]
    assert "10.00 GiB of disk" in finding.notes[1]


@pytest.mark.parametrize(
    ("config", "narrow", "why"),
    [
        ({"text_config": {}}, False, "parts for text and images"),
        ({"model_type": "odd", "depth": 3}, False, "none of `num_hidden_layers`"),
        ({"model_type": "gpt2"}, True, "none of `num_hidden_layers`"),  # all sizes are the family's own
        ({"num_hidden_layers": 2, "width": 3}, True, "width and heads"),
        ({"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 1, "kv_lora_rank": 4}, True, "latent"),
        ({"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 1, "kv_lora_rank": 4}, False, None),
    ],
)
def test_models_that_cannot_be_made_smaller(config: dict[str, Any], narrow: bool, why: str | None) -> None:
    reason = small_model_config.unsupported_reason(config, narrow=narrow)
    assert reason is None if why is None else why in (reason or "")


@pytest.mark.parametrize(
    "name", ["llama-3.1-70b", "qwen2.5-72b", "mistralai/Mixtral-8x7B-v0.1", "gemma-2-9b", "qwen3-30b-a3b"]
)
@pytest.mark.parametrize("degree", [1, 2])
def test_narrowed_models_are_models(name: str, degree: int) -> None:
    config = catalogue_config(name)
    if config is None:
        pytest.fail(name)
    small = facts_from_config(reduce_layers(small_model_config.reduce_width(config, 256, degree), 2)).facts
    assert small is not None
    assert small.hidden == 256
    assert small.num_layers == 2
    assert small.heads % small.kv_heads == 0
    assert small.kv_heads % degree == 0
    assert small.num_parameters < 10**8
