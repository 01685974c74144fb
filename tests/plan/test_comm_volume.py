# SPDX-License-Identifier: Apache-2.0
"""Bytes that move in a step, against volumes that were counted under DeepSpeed. Needs nothing; milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.facts.model_lookup import find_model
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time import comm_volume
from tests.support.plan_inputs import offload, plan_of, settings

P = 70_553_706_496
ONCE = {"train": {"gradient_accumulation_steps": 1}}
NOTHING_KEPT = {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}


def volume(plan_settings: PlanSettings) -> float:
    """Ring units of the model's 16-bit bytes: gathers and reductions together."""
    return (comm_volume.all_gather_bytes(P, plan_settings) + comm_volume.gradient_reduction_bytes(P, plan_settings)) / (
        2 * P
    )


@pytest.mark.parametrize(
    ("zero", "units"),
    [
        ({"stage": 0}, 2),
        ({"stage": 1}, 3),
        ({"stage": 2}, 3),
        ({"stage": 3, **NOTHING_KEPT}, 3),
    ],
    ids=["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"],
)
def test_volumes_of_one_micro_batch(zero: dict[str, Any], units: float) -> None:
    assert volume(settings(zero=zero, **ONCE)) == pytest.approx(units)


@pytest.mark.parametrize(("stage", "units"), [(0, 2), (1, 3), (2, 2 * 4 + 1), (3, 3 * 4)])
def test_stage_2_and_3_pay_for_every_micro_batch(stage: int, units: float) -> None:
    assert volume(settings(zero={"stage": stage, **(NOTHING_KEPT if stage == 3 else {})})) == pytest.approx(units)


@pytest.mark.parametrize("stage", [1, 2])
def test_rooted_reduces_are_the_paper(stage: int) -> None:
    raw = {"zero_optimization": {"use_multi_rank_bucket_allreduce": False}}
    assert volume(settings(zero={"stage": stage}, deepspeed=raw, **ONCE)) == pytest.approx(2)


def test_what_stays_gathered_over_the_turn_is_not_gathered_again() -> None:
    small = find_model("llama-3.2-1b").facts
    assert small is not None
    plan_settings = settings("llama-3.2-1b", **ONCE)
    n = small.num_parameters
    assert comm_volume.all_gather_bytes(n, plan_settings) == pytest.approx(2 * (2 * n - 550_000_000))


def test_zeropp_halves_gathers_and_quarters_reductions() -> None:
    raw = {"zero_optimization": {"zero_quantized_weights": True, "zero_quantized_gradients": True}}
    plain, packed = settings(), settings(deepspeed=raw)
    assert comm_volume.all_gather_bytes(P, packed) == comm_volume.all_gather_bytes(P, plain) / 2
    assert comm_volume.gradient_reduction_bytes(P, packed) == comm_volume.gradient_reduction_bytes(P, plain) / 4


def test_a_second_shard_keeps_half_of_the_gathers_inside_a_host() -> None:
    raw = {"zero_optimization": {"zero_hpz_partition_size": 8}}
    slow = {"cluster": {"network_bandwidth": "5GB/s"}}
    plain = plan_of("llama-3.1-8b", 16, **slow).time
    planned = plan_of("llama-3.1-8b", 16, deepspeed=raw, **slow).time
    assert plain is not None
    assert planned is not None
    assert planned.seconds_of("collectives") < 0.75 * plain.seconds_of("collectives")


def test_offload_at_stage_3_parks_gradients_on_the_host() -> None:
    """6 bytes down and 2 up a parameter without accumulation (4 + 2 e g down, e g up and the new weights); without the
    4 where the host has no second copy of gradients.
    """
    plan_settings = settings(zero=offload("cpu"), **ONCE)
    assert sum(comm_volume.device_to_host_bytes(1.0, replace(plan_settings, separate_offload_grads=True))) == 6
    assert sum(comm_volume.device_to_host_bytes(1.0, plan_settings)) == 2
    assert comm_volume.host_to_device_bytes(1.0, plan_settings) == (2, 2)


def test_offload_at_stage_2_goes_down_once_without_accumulation() -> None:
    assert comm_volume.device_to_host_bytes(1.0, settings(zero=offload("cpu", stage=2), **ONCE)) == (0, 4)


@pytest.mark.parametrize(
    ("deepspeed", "bytes_a_parameter"),
    [
        ({"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}, 24),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}}}, 96),
        ({}, 44),
    ],
)
def test_the_cpu_step_moves_the_bytes_of_its_formats(deepspeed: dict[str, Any], bytes_a_parameter: int) -> None:
    """Master, moments and gradient, read and written, in 32 or 16 bits; 20 tensors of torch's AdamW instead of 7."""
    order = {"patches": {"one-pass-adam": "off"}}
    planned = settings(zero=offload("cpu", stage=2), deepspeed=deepspeed, launch=order)
    assert comm_volume.cpu_optimizer_bytes(1.0, planned) == bytes_a_parameter


def test_the_optimizer_on_nvme_reads_12_and_writes_12_bytes() -> None:
    moved = comm_volume.nvme_bytes(1.0, settings(zero=offload("nvme")))
    assert moved.optimizer_read == moved.optimizer_write == 12
    assert moved.gradients_write == 0
    assert comm_volume.device_to_host_bytes(1.0, settings(zero=offload("nvme"), **ONCE)) == (2, 0)


def test_gradients_that_go_to_the_disk_too_are_4_bytes_more_each_way() -> None:
    moved = comm_volume.nvme_bytes(1.0, replace(settings(zero=offload("nvme")), separate_offload_grads=True))
    assert moved.optimizer_read == 16
    assert moved.optimizer_write + moved.gradients_write == 16


def test_parameters_on_nvme_are_read_for_every_gather() -> None:
    moved = comm_volume.nvme_bytes(1.0, settings(zero=offload("nvme", "nvme")))
    assert (moved.parameters_read, moved.parameters_write) == (2 * 2 * 4, 2)


def test_tensor_parallel_all_reduces_seven_times_a_layer_and_once_where_it_is_recomputed() -> None:
    facts = find_model("llama-3.1-8b").facts
    assert facts is not None
    plan_settings = settings("llama-3.1-8b", parallel={"tensor_parallel_size": 2}, zero={"stage": 1}, **ONCE)
    hidden = 4096 * 4096 * 2
    assert comm_volume.tensor_parallel_bytes(facts, plan_settings) == pytest.approx(
        (2 * ((7 + 1) * 32 + 1) * hidden + 4096 * 2 * 128_256) / 2
    )
    assert comm_volume.tensor_parallel_bytes(facts, settings()) == 0


def test_ulysses_exchanges_queries_keys_values_and_outputs() -> None:
    facts = find_model("llama-3.1-8b").facts
    assert facts is not None
    plan_settings = settings("llama-3.1-8b", parallel={"sequence_parallel_size": 4}, **ONCE)
    for checkpointing, passes in ((False, 2), (True, 3)):
        each = plan_settings.with_values(checkpointing=checkpointing)
        assert comm_volume.sequence_parallel_bytes(facts, each) == passes * 32 * 1024 * 2 * (2 * 40 * 128) * 3 / 4


def test_pipelined_swapping_hides_behind_adam() -> None:
    plain = {"offload_optimizer": {"device": "nvme", "nvme_path": "/n"}, "stage": 3}
    piped = {
        **plain,
        "offload_optimizer": {**plain["offload_optimizer"], "pipeline_read": True, "pipeline_write": True},
    }  # type: ignore[dict-item]
    slow, fast = plan_of(zero=plain).time, plan_of(zero=piped).time
    assert slow is not None
    assert fast is not None
    assert slow.seconds_of("NVMe") - fast.seconds_of("NVMe") == pytest.approx(
        slow.seconds_of("CPU optimizer"), rel=0.01
    )
