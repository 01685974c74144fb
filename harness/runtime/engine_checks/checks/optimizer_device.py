"""AT003: where optimizer states and master weights live."""

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


def _observe(seen: Observations) -> Any:
    optimizer = seen.engine.optimizer
    place = (
        "cpu" if getattr(optimizer, "offload_optimizer", False) or getattr(optimizer, "cpu_offload", False) else "none"
    )
    return {
        "place": "nvme" if getattr(optimizer, "swap_optimizer", False) else place,
        "devices": sorted({m.device.type for m in master_weights(seen.engine) if m.numel()}),
        "accelerator": get_accelerator().device_name(),
        "ratio": float(getattr(optimizer, "partial_offload", 1.0) or 1.0),
    }


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    wanted = asked.offload_optimizer
    wrong = [rank for rank, has in enumerate(found) if has["place"] != wanted]
    if wrong:
        has = found[wrong[0]]["place"]
        return check_failed(
            f"optimizer states are offloaded to {format_value(has)}, should be {format_value(wanted)}{format_ranks(wrong, len(found))}",
            has,
        )
    for rank, has in enumerate(found):
        allowed = {has["accelerator"].split(":")[0]} if wanted == "none" else {"cpu"}
        if asked.offload_ratio == 1.0 and not set(has["devices"]) <= allowed:
            return check_failed(
                f"master weights of rank {rank} are on {format_value(has['devices'])}, should be on {format_value(allowed)}",
                has["devices"],
            )
        if wanted != "none" and asked.zero_stage == 3 and has["ratio"] != asked.offload_ratio:
            return check_failed(
                f"the share of the optimizer on the CPU is {has['ratio']:g}, should be {asked.offload_ratio:g}", has
            )
    return check_passed(wanted)


CHECK = EngineCheck(
    id="AT003",
    name="optimizer-elsewhere",
    question="are optimizer states and master weights where they are asked to be?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.offload_optimizer.device",
    gates=("OF003", "OF004", "OF006"),
    fix="`nvme` needs ZeRO stage 3, `cpu` stage 1 or more; write `device` out",
)
