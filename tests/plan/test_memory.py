"""Memory of real models, against the figures that were worked out from DeepSpeed's source. Needs nothing; a second."""

from __future__ import annotations

from typing import Any

import pytest
from planning import TINY, offload, plan_of

from harness.plan.memory import Capacity, Fit, Memory, fit
from harness.plan.plan import Plan
from harness.plan.rows import Row, rounding


def memory(*args: Any, **kwargs: Any) -> Memory:
    found = plan_of(*args, **kwargs).memory
    assert found is not None
    return found


def host_states(plan: Plan) -> float:
    """GB a host without processes and rounding."""
    assert plan.memory is not None
    rows = [row for row in plan.memory.of("host") if row.kind not in ("process", "rounding")]
    return 8 * sum(row.bytes for row in rows) / 1e9


@pytest.mark.parametrize(
    ("zero", "raw", "gigabytes"),
    [
        (offload("cpu"), {}, 1270),
        (offload("cpu", "cpu"), {}, 1411),
        (offload("cpu"), {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}, 706),
        (offload("nvme"), {}, 272),
        (offload("nvme", sub_group_size=100_000_000), {}, 158),
    ],
)
def test_llama_70b_on_one_host_of_8(zero: dict[str, Any], raw: dict[str, Any], gigabytes: int) -> None:
    assert host_states(plan_of(zero=zero, deepspeed=raw)) == pytest.approx(gigabytes, abs=1)


def test_parameters_on_nvme_need_a_write_back_buffer_that_is_not_divided() -> None:
    small = memory(zero=offload("nvme", "nvme", sub_group_size=100_000_000))
    large = memory(zero=offload("nvme", "nvme"))
    assert large.host_peak - small.host_peak > 200e9
    assert small.nvme == pytest.approx((16 + 2) * 70_553_706_496, rel=0.001)


def test_18_bytes_a_parameter_on_the_host_and_20_with_the_parameters() -> None:
    p = 70_553_706_496
    assert host_states(plan_of(zero=offload("cpu"))) * 1e9 == pytest.approx(18 * p, rel=1e-4)
    assert host_states(plan_of(zero=offload("cpu", "cpu"))) * 1e9 == pytest.approx(20 * p, rel=1e-4)


def test_llama_8b_at_stage_3_in_the_step() -> None:
    rows = memory("llama-3.1-8b").rows
    step = {row.kind: row.bytes / 1e9 for row in rows if row.tier == "gpu" and "step" in row.phases and not row.assumed}
    assert step["parameters"] == pytest.approx(2.01, abs=0.01)
    assert step["master"] + step["states"] == pytest.approx(12.05, abs=0.01)
    assert step["temporary"] == pytest.approx(6.0, abs=0.1)


@pytest.mark.parametrize(
    ("stage", "per_parameter", "shared"), [(0, 16, 0), (1, 4, 12)], ids=["replicated", "optimizer states sharded"]
)
def test_model_states_of_the_literature(stage: int, per_parameter: float, shared: float) -> None:
    p = 8_030_261_248
    assert memory("llama-3.1-8b", zero={"stage": stage}).model_states == pytest.approx(
        (per_parameter + shared / 8) * p, rel=1e-3
    )


def test_fp32_keeps_a_second_copy_of_the_weights_at_stages_1_to_3() -> None:
    kinds = [row.kind for row in memory(precision={"bf16": False}).rows]
    assert "master" in kinds
    assert "master" not in [row.kind for row in memory(precision={"bf16": False}, zero={"stage": 0}).rows]


def test_checkpointing_keeps_inputs_instead_of_layers() -> None:
    kept = {row.kind: row.bytes for row in memory("llama-3.1-8b").rows}
    assert kept["activations"] == 32 * 2 * 4096 * 4096
    whole = {row.kind: row.bytes for row in memory("llama-3.1-8b", train={"gradient_checkpointing": False}).rows}
    assert whole["activations"] == 32 * 4096 * 200_840


def test_on_the_cpu_device_rows_are_host_memory() -> None:
    m = memory(TINY, ranks=2, cluster={"gpu": "cpu"})
    assert m.pooled
    host = max(m.at("host", "backward"), m.at("host", "step"))
    assert m.host_peak == 2 * (host + m.gpu_peak)
    assert not [row for row in m.rows if row.kind in ("context", "nccl", "rounding")]


def test_on_the_cpu_only_the_touched_part_of_a_bucket_counts() -> None:
    bucket = next(row for row in memory(TINY, ranks=2, cluster={"gpu": "cpu"}).rows if row.kind == "bucket")
    assert bucket.bytes == 2 * 94_912


def test_every_row_has_a_formula_and_a_source() -> None:
    for zero in ({"stage": 0}, {"stage": 1}, offload("cpu", stage=2), offload("nvme", "nvme")):
        for row in memory(zero=zero).rows:
            assert row.bytes > 0
            assert row.formula
            assert row.source


def test_pinned_blocks_are_rounded_up_to_powers_of_two() -> None:
    rows = [
        Row("host", "x", "x", 5, "", "", pinned=(5, 8)),
        Row("host", "y", "y", 9, "", "", pinned=(9,)),
        Row("host", "z", "z", 3, "", ""),
    ]
    assert rounding(rows) == 3 + 0 + 7


def test_the_rounding_disappears_without_pinned_memory() -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    assert "rounding" in [row.kind for row in memory(zero=offload("cpu")).rows]
    assert "rounding" not in [row.kind for row in memory(zero=zero).rows]


@pytest.mark.parametrize(
    ("gpu", "host", "expected"),
    [
        (80 * 2**30, 2 * 10**12, Fit(True, "host memory")),
        (20 * 2**30, 2 * 10**12, Fit(False, "gpu memory")),
        (80 * 2**30, 10**12, Fit(False, "host memory")),
        (80 * 2**30, None, Fit(None, "gpu memory")),
        (None, 10**12, Fit(False, "host memory")),
        (None, None, Fit(None, "")),
    ],
)
def test_fit(gpu: int | None, host: int | None, expected: Fit) -> None:
    assert fit(memory(zero=offload("cpu")), Capacity(gpu, host)) == expected
