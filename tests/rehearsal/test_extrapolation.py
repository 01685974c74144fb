# SPDX-License-Identifier: Apache-2.0
"""Estimates of the whole run from its rehearsal: exact where the plan is exact, else a range. Needs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.check.check_file import check_file
from harness.facts.model_catalogue import catalogue_config
from harness.launching.programs.rehearsal import evaluate_rehearsal
from harness.plan.planner import Plan, make_plan
from harness.rehearsal.extrapolation import Quantity, RehearsalMeasurements, extrapolate, sum_by_tier
from harness.rehearsal.small_run import AvailableResources, SmallRun, shrink_run
from harness.views.rehearsal import render_quantities

CONFIGS = Path(__file__).parents[2] / "ds_configs"
RECIPES = sorted(
    path for pattern in ("llama-3.1-70b-zero3-*.yaml", "qwen2.5-72b-zero3-*.yaml") for path in CONFIGS.glob(pattern)
)
CPU = AvailableResources(0, None, 20 << 30, 100 << 30)
NODE = AvailableResources(8, "H100-80GB", 1900 << 30, 8000 << 30)
KINDS = ("parameters", "gradients", "master", "states", "master_gradients", "persistent")


def make_plans(path: Path, room: AvailableResources = CPU) -> tuple[Plan, Plan]:
    run = check_file(str(path)).run
    assert run is not None
    small = shrink_run(
        run, catalogue_config(run.spec.model.name_or_path or "") or {}, room, {"model": "m", "data": "d", "nvme": "n"}
    )
    assert isinstance(small, SmallRun)
    return small.plan, make_plan(run)


def states_of(plan: Plan) -> dict[str, int]:
    """The states of an engine if the plan were exact."""
    assert plan.memory is not None
    states: dict[str, int] = {}
    for row in plan.memory.items:
        if row.kind in KINDS and (row.tier == "nvme" or "step" in row.phases):
            states[f"{row.tier}.{row.kind}"] = states.get(f"{row.tier}.{row.kind}", 0) + row.bytes
    return states


def make_measurements(states: dict[str, int], **lines: Any) -> RehearsalMeasurements:
    return RehearsalMeasurements(
        [{"phase": "step", "memory_host_peak_bytes": [10**9, 10**9], "states": states}], [2.0, 3.0, 2.5], (), **lines
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_states_that_are_as_planned_are_the_whole_runs_plan(path: Path) -> None:
    """The sum over kinds and tiers too: the estimate is the plan of the whole run, to the byte."""
    small, whole = make_plans(path)
    states = [q for q in extrapolate(make_measurements(states_of(small)), small, whole) if q.name in states_of(small)]
    assert len(states) >= 4
    assert all(q.exact for q in states)
    # Norms and biases, a group of their own, may be too small to be swapped here and large enough there.
    assert {q.name: q.low for q in states if q.low} == states_of(whole)
    assert sum(q.low or 0 for q in states) == sum(states_of(whole).values())
    assert not [f for f in evaluate_rehearsal(states, whole) if f.gate == "MM010"]


def test_states_that_are_not_as_planned_are_reported() -> None:
    small, whole = make_plans(RECIPES[0])
    states = states_of(small)
    states["host.master"] += 4
    quantities = extrapolate(make_measurements(states), small, whole)
    master = next(q for q in quantities if q.name == "host.master")
    assert not master.exact
    assert master.low is not None
    assert master.low > (master.whole or 0)
    finding = next(f for f in evaluate_rehearsal(quantities, whole) if f.gate == "MM010")
    assert finding.severity == "warning"
    assert "`host.master`" in " ".join(finding.notes)


def test_a_state_that_the_plan_does_not_have_is_not_extrapolated() -> None:
    small, whole = make_plans(RECIPES[0])
    quantity = next(
        q for q in extrapolate(make_measurements({"gpu.surprise": 5}), small, whole) if q.name == "gpu.surprise"
    )
    assert (quantity.planned, quantity.low, quantity.high) == (None, None, None)
    assert quantity.why


def test_host_memory_lies_between_two_ways_to_be_wrong() -> None:
    small, whole = make_plans(RECIPES[0], NODE)
    assert small.memory is not None
    assert whole.memory is not None
    planned = max(small.memory.host_bytes_at(phase) for phase in ("forward", "backward", "step"))
    line = {"phase": "step", "memory_host_peak_bytes": [planned // 8 + 10**9] * 8}
    quantity = next(
        q for q in extrapolate(RehearsalMeasurements([line], (), ()), small, whole) if q.name == "host memory, step"
    )
    assert quantity.whole is not None
    assert quantity.low is not None
    assert quantity.high is not None
    assert quantity.whole < quantity.low <= quantity.high
    assert quantity.ratio == pytest.approx(1 + 8 * 10**9 / planned, rel=1e-6)


def test_time_is_extrapolated_where_both_plans_have_rates() -> None:
    small, whole = make_plans(RECIPES[0], NODE)
    assert small.time is not None
    assert whole.time is not None
    seconds = [small.time.seconds, 2 * small.time.seconds, 1.5 * small.time.seconds]
    step = next(q for q in extrapolate(RehearsalMeasurements((), seconds, ()), small, whole) if q.name == "a step")
    assert step.ratio == pytest.approx(1.5)
    assert (step.low, step.high) == (pytest.approx(whole.time.seconds), pytest.approx(2 * whole.time.seconds))


def test_on_a_cpu_no_time_is_extrapolated_and_the_reason_is_given() -> None:
    small, whole = make_plans(RECIPES[0])
    step = next(q for q in extrapolate(make_measurements({}), small, whole) if q.name == "a step")
    assert (step.measured, step.low) == (2.5, None)
    assert "no rates of a CPU" in step.why


@pytest.mark.parametrize(("low", "severity"), [(3e12, "error"), (1e12, "warning"), (None, None)])
def test_what_does_not_fit_is_a_finding(low: float | None, severity: str | None) -> None:
    _, whole = make_plans(RECIPES[0])
    q = Quantity("host memory, step", "bytes", 1.0, 1.0, 1.0, low, None if low is None else 4e12)
    assert [f.severity for f in evaluate_rehearsal([q], whole) if f.gate == "MM011"] == ([severity] if severity else [])


def test_the_table_has_ten_lines_at_most_and_a_line_a_tier() -> None:
    small, whole = make_plans(CONFIGS / "llama-3.1-70b-zero3-nvme-all.yaml")
    quantities = extrapolate(make_measurements(states_of(small), export_peak=10**9), small, whole)
    lines = render_quantities(quantities).splitlines()
    assert len(lines) <= 11
    assert [q.name for q in sum_by_tier(quantities)] == ["states on gpu", "states on host", "states on nvme"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["states on gpu", "states on host", "states on nvme"]
    assert all("exact to the byte" in line for line in lines[1:4])
