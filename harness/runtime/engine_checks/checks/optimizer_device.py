# SPDX-License-Identifier: Apache-2.0
"""AT003: the device of optimizer states and master weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepspeed.accelerator import get_accelerator

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    check_failed,
    check_passed,
    format_ranks,
    format_value,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import master_weights
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    optimizer = observations.engine.optimizer
    device = (
        "cpu" if getattr(optimizer, "offload_optimizer", False) or getattr(optimizer, "cpu_offload", False) else "none"
    )
    return {
        "place": "nvme" if getattr(optimizer, "swap_optimizer", False) else device,
        "devices": sorted({m.device.type for m in master_weights(observations.engine) if m.numel()}),
        "accelerator": get_accelerator().device_name(),
        "ratio": float(getattr(optimizer, "partial_offload", 1.0) or 1.0),
    }


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    device = expected.offload_optimizer
    ranks = [rank for rank, values in enumerate(rank_values) if values["place"] != device]
    if ranks:
        place = rank_values[ranks[0]]["place"]
        return check_failed(
            f"optimizer states are offloaded to {format_value(place)}, should be {format_value(device)}"
            f"{format_ranks(ranks, len(rank_values))}",
            place,
        )
    for rank, values in enumerate(rank_values):
        allowed = {values["accelerator"].split(":")[0]} if device == "none" else {"cpu"}
        if expected.offload_ratio == 1.0 and not set(values["devices"]) <= allowed:
            return check_failed(
                f"master weights of rank {rank} are on {format_value(values['devices'])},"
                f" should be on {format_value(allowed)}",
                values["devices"],
            )
        if device != "none" and expected.zero_stage == 3 and values["ratio"] != expected.offload_ratio:
            return check_failed(
                f"the share of the optimizer on the CPU is {values['ratio']:g}, should be {expected.offload_ratio:g}",
                values,
            )
    return check_passed(device)


CHECK = EngineCheck(
    id="AT003",
    name="optimizer-elsewhere",
    question="are optimizer states and master weights on the device of the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.offload_optimizer.device",
    gates=("OF003", "OF004", "OF006"),
    fix="`nvme` needs ZeRO stage 3, `cpu` stage 1 or more; set `device` explicitly",
)
