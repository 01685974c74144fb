# SPDX-License-Identifier: Apache-2.0
"""Planned and simulated bytes next to each other, and the text that shows them. Needs nothing; seconds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.plan.simulation.comparison import compare_simulation, group_of_line, planned_tensors
from harness.plan.simulation.layer_extrapolation import extrapolate_layers
from harness.views.plan_simulation import SimulationView, render_simulation, simulation_as_dict
from harness.views.style import Style
from tests.support.plan_inputs import plan_of, settings

PLAN = plan_of("llama-3.1-8b")
DEFRAGMENT = "deepspeed/runtime/zero/utils.py:237 defragment"
GIB = 1 << 30
SETTINGS = settings("llama-3.1-8b")


def result_of(gpu: int, **more: Any) -> dict[str, Any]:
    peaks = {phase: {"cuda": {"bytes": gpu, "holders": {DEFRAGMENT: gpu}}} for phase in ("load", "forward", "backward")}
    empty: dict[str, Any] = {"states": {}, "collectives": {}, "copies": {}, "gathers": {}, "disk": {}}
    return {"peaks": peaks, "failed": None, "host_exceeded": None, "seconds": 1.0, **empty, **more}


def test_a_row_that_is_off_by_more_than_two_percent_differs() -> None:
    assert PLAN.memory is not None
    exact = planned_tensors(PLAN.memory, "gpu", "load")
    for factor, differs in ((1.0, False), (1.015, False), (1.05, True), (0.5, True)):
        rows = compare_simulation(PLAN.memory, SETTINGS, result_of(int(exact * factor))).phases
        assert next(row for row in rows if row.phase == "load").differs is differs


@pytest.mark.parametrize(
    ("line", "device", "group"),
    [
        (DEFRAGMENT, "cuda", "parameters"),
        ("deepspeed/runtime/zero/stage3.py:1160 _create_fp32_partitions", "cpu", "masters"),
        ("deepspeed/ops/adam/cpu_adam.py:161 step", "cpu", "optimizer states"),
        ("deepspeed/runtime/zero/stage3.py:782 _setup_for_real_optimizer", "cuda", "buffers and temporaries"),
        ("deepspeed/runtime/zero/stage3.py:791 _setup_for_real_optimizer", "cpu", "gradients"),
        ("deepspeed/runtime/engine.py:3007 forward < transformers/models/llama/modeling_llama.py:63 forward", "cuda", "activations"),
        ("autograd: aten::mm", "cuda", "activations"),
        ("somewhere.py:1 else", "cuda", "other"),
    ],
)  # fmt: skip
def test_a_line_belongs_to_a_group_of_the_plan(line: str, device: str, group: str) -> None:
    assert group_of_line(line, device) == group


def test_out_of_memory_names_phase_allocation_and_holders() -> None:
    assert PLAN.memory is not None
    failed = {
        "phase": "backward",
        "device": "cuda",
        "bytes": 2 * GIB,
        "line": "x.py:1 f",
        "taken": 70 * GIB,
        "holders": {DEFRAGMENT: 60 * GIB, "b.py:2 g": 6 * GIB, "c.py:3 h": 3 * GIB, "d.py:4 i": 1 * GIB},
    }
    result = result_of(GIB, failed=failed)
    view = SimulationView(PLAN, result, compare_simulation(PLAN.memory, SETTINGS, result), 0, "DeepSpeed x")
    text = render_simulation(view, Style(False), 120)
    assert "Out of GPU memory in backward: 2.00 GiB for x.py:1 f, with 70.00 GiB taken by" in text
    assert "60.00 GiB  " + DEFRAGMENT in text
    assert "3.00 GiB  c.py:3 h" in text
    assert "d.py:4 i" not in text
    assert simulation_as_dict(view)["simulation"]["failed"]["phase"] == "backward"


def test_layers_are_extrapolated_by_a_straight_line() -> None:
    small, large = result_of(10), result_of(14)
    assert extrapolate_layers(small, large, (2, 4, 80), 0)["peaks"]["load"]["cuda"]["bytes"] == 14 + 76 * 2


def test_page_locked_rounding_is_the_plan_s() -> None:
    def with_host(size: int, rounding: int) -> dict[str, Any]:
        peaks = {
            "load": {
                "cpu": {"bytes": size + rounding, "holders": {"a": size, "rounding of page-locked memory": rounding}}
            }
        }
        return result_of(0, peaks=peaks)  # fmt: skip

    host = extrapolate_layers(with_host(10, 6), with_host(14, 2), (2, 4, 80), 1000)["peaks"]["load"]["cpu"]
    assert host == {"bytes": 14 + 76 * 2 + 1000, "holders": {"a": 166, "rounding of page-locked memory": 1000}}
