# SPDX-License-Identifier: Apache-2.0
"""Planned and simulated bytes next to each other, and the text that shows them. Needs nothing; seconds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.plan.simulation.comparison import compare_rank, compare_simulation, group_of_line, planned_tensors
from harness.plan.simulation.layer_extrapolation import extrapolate_layers, simulated_rounding_bytes
from harness.views.plan_simulation import SimulationView, render_simulation, simulation_as_dict
from harness.views.style import Style
from tests.support.plan_inputs import TINY, memory_of_run, offload, plan_of

PLAN = plan_of("llama-3.1-8b")
DEFRAGMENT = "deepspeed/runtime/zero/utils.py:237 defragment"
GIB = 1 << 30


def result_of(gpu: int, **more: Any) -> dict[str, Any]:
    peaks = {phase: {"cuda": {"bytes": gpu, "holders": {DEFRAGMENT: gpu}}} for phase in ("load", "forward", "backward")}
    empty: dict[str, Any] = {"states": {}, "collectives": {}, "copies": {}, "gathers": {}, "disk": {}}
    return {"peaks": peaks, "failed": None, "host_exceeded": None, "seconds": 1.0, **empty, **more}


def test_a_row_that_is_off_by_more_than_two_percent_differs() -> None:
    assert PLAN.memory is not None
    exact = planned_tensors(PLAN.memory, "gpu", "load")
    for factor, differs in ((1.0, False), (1.015, False), (1.05, True), (0.5, True)):
        rows = compare_simulation(PLAN.memory, result_of(int(exact * factor))).phases
        assert next(row for row in rows if row.phase == "load").differs is differs


def test_a_difference_is_named_only_where_the_other_settings_agree() -> None:
    spread: dict[str, Any] = {"parallel": {"sequence_parallel_size": 8}, "zero": offload("cpu")}
    packed, plain = (plan_of(data={"max_length": 65536, "packing": way}, **spread) for way in (True, False))
    assert plain.memory is not None
    exact = planned_tensors(plain.memory, "gpu", "forward")
    for size, named in ((exact, True), (exact // 2, False)):
        rows = compare_rank(packed, 0, result_of(size)).phases
        row = next(row for row in rows if row.tier == "gpu" and row.phase == "forward")
        assert row.differs
        assert bool(row.reason) is named


def test_the_gradients_are_those_of_the_rank() -> None:
    """Stage 2 keeps whole parameters that touch a partition: two ranks have different ones."""
    plan = plan_of("llama-3.1-8b", 16, zero={"stage": 2})
    rows = [compare_rank(plan, rank, result_of(GIB)).phases for rank in (0, 3)]
    first, other = (next(row.planned for row in each if row.phase == "forward") for each in rows)
    assert first != other


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
    view = SimulationView(PLAN, result, compare_simulation(PLAN.memory, result), 0, "DeepSpeed x")
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


def test_save_and_resume_are_rows() -> None:
    plan = plan_of("llama-3.1-8b", checkpoint={"async_save": True, "save_steps": 10})
    assert plan.memory is not None
    copies = sum(item.bytes for item in plan.memory.items_of("host") if item.kind == "save")
    assert copies
    step, save = (planned_tensors(plan.memory, "host", phase) for phase in ("step", "save"))
    assert save - step >= copies, "the simulated steps come before the first save"
    peaks = {phase: {"cpu": {"bytes": save, "holders": {}}} for phase in ("save", "resume")}
    rows = compare_simulation(plan.memory, result_of(0, peaks=peaks)).phases
    assert [(row.tier, row.phase, row.differs) for row in rows[:1]] == [("host", "save", False)]
    assert rows[1].phase == "resume"


def test_a_checkpoint_is_extrapolated() -> None:
    def with_checkpoint(size: int) -> dict[str, Any]:
        return result_of(0, checkpoint={"written": {"weights": size}, "way": "in line"})

    whole = extrapolate_layers(with_checkpoint(10), with_checkpoint(14), (2, 4, 80), 0)["checkpoint"]
    assert whole == {"written": {"weights": 14 + 76 * 2}, "way": "in line"}


def test_peaks_of_different_moments_are_no_straight_line() -> None:
    """With few layers the largest matrix holds the peak of a save, with more the layers: nothing follows from both."""

    def with_save(holders: dict[str, int]) -> dict[str, Any]:
        return result_of(0, peaks={"save": {"cpu": {"bytes": sum(holders.values()), "holders": holders}}})

    def is_straight(small: dict[str, int], large: dict[str, int]) -> bool:
        return extrapolate_layers(with_save(small), with_save(large), (2, 4, 80), 0)["is_straight_line"]

    assert is_straight({"matrix": 1000, "layers": 20}, {"matrix": 1000, "layers": 40})
    assert is_straight({"matrix": 1000}, {"matrix": 1000, "small": 5})
    assert not is_straight({"matrix": 1000}, {"layers": 1040})
    assert not is_straight({"matrix": 1000}, {"matrix": 1000, "layers": 40})


def test_page_locked_blocks_are_rounded_as_simulated() -> None:
    """Shards and gradients of 183,787,520 bytes each, simulated with all 48 layers: 161.45 MiB of rounding. The plan has
    a third block, which torch's cache keeps.
    """
    config = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 48, "vocab_size": 64_000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    memory = memory_of_run({**TINY, **config, **heads}, zero=offload("cpu", "cpu"))
    planned = sum(item.bytes for item in memory.items_of("host") if item.kind == "rounding")
    assert simulated_rounding_bytes(memory) / (1 << 20) == pytest.approx(161.45, abs=0.01)
    assert planned == pytest.approx(1.5 * simulated_rounding_bytes(memory), rel=0.01)
