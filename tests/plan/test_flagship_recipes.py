# SPDX-License-Identifier: Apache-2.0
"""The recipes for 70B on one node fit the node that they name, and are what they promise. Needs nothing, seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.check.check_file import check_file
from harness.plan.planner import Plan, make_plan

RECIPES = sorted(
    path
    for model in ("llama-3.1-70b", "qwen2.5-72b")
    for path in (Path(__file__).parents[2] / "ds_configs").glob(f"{model}-zero3-*.yaml")
)
KINDS = {"zero3-cpu-offload", "zero3-nvme", "zero3-nvme-all", "zero3-h200", "zero3-long-context"}
CEILING = {
    "zero3-cpu-offload": 2 * 10**12,
    "zero3-nvme": 10**12,
    "zero3-nvme-all": 512 * 10**9,
    "zero3-h200": 2 * 10**12,
    "zero3-long-context": 2 * 10**12,
}
"""Host memory that each promises to do with."""


def plan_of(path: Path) -> Plan:
    checked = check_file(str(path))
    assert checked.run is not None
    assert checked.report.ok
    assert not checked.report.findings
    return make_plan(checked.run)


def test_both_models_have_all_of_them() -> None:
    names = {path.stem for path in RECIPES}
    assert names == {f"{model}-{kind}" for model in ("llama-3.1-70b", "qwen2.5-72b") for kind in KINDS}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_it_fits_its_node(path: Path) -> None:
    plan = plan_of(path)
    kind = path.stem.split("b-", 1)[1]
    assert plan.fit.fits is True
    assert plan.memory is not None
    assert plan.fit.headroom is not None
    assert plan.fit.headroom > 0.02
    assert plan.memory.host_peak < CEILING[kind]
    assert plan.capacity.host == CEILING[kind]
    assert plan.run.parallel_dims.world_size == 8
    assert ("h200" in kind) == (plan.device is not None and plan.device.name == "H200-141GB")


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_it_fine_tunes_on_chats_and_keeps_what_it_learned(path: Path) -> None:
    checked = check_file(str(path))
    assert checked.run is not None
    spec = checked.run.spec
    assert (spec.data.format, spec.data.packing, spec.data.assistant_only_loss) == ("messages", True, True)
    assert spec.train.gradient_checkpointing
    assert spec.checkpoint.save_steps
    assert spec.checkpoint.save_total_limit == 2
    settings = make_plan(checked.run).settings
    assert settings is not None
    assert settings.tokens_per_step == 1 << 20
    assert settings.sequence_parallel_size == (8 if "long-context" in path.stem else 1)
