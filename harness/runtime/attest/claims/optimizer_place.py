"""AT003: where optimizer states and master weights live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepspeed.accelerator import get_accelerator

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, holds, show, where
from harness.runtime.attest.seen import Seen
from harness.runtime.attest.weights import masters


def _look(seen: Seen) -> Any:
    optimizer = seen.engine.optimizer
    place = (
        "cpu" if getattr(optimizer, "offload_optimizer", False) or getattr(optimizer, "cpu_offload", False) else "none"
    )
    return {
        "place": "nvme" if getattr(optimizer, "swap_optimizer", False) else place,
        "devices": sorted({m.device.type for m in masters(seen.engine) if m.numel()}),
        "accelerator": get_accelerator().device_name(),
        "ratio": float(getattr(optimizer, "partial_offload", 1.0) or 1.0),
    }


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    wanted = asked.offload_optimizer
    wrong = [rank for rank, has in enumerate(found) if has["place"] != wanted]
    if wrong:
        has = found[wrong[0]]["place"]
        return differs(
            f"optimizer states are offloaded to {show(has)}, should be {show(wanted)}{where(wrong, len(found))}", has
        )
    for rank, has in enumerate(found):
        allowed = {has["accelerator"].split(":")[0]} if wanted == "none" else {"cpu"}
        if asked.ratio == 1.0 and not set(has["devices"]) <= allowed:
            return differs(
                f"master weights of rank {rank} are on {show(has['devices'])}, should be on {show(allowed)}",
                has["devices"],
            )
        if wanted != "none" and asked.stage == 3 and has["ratio"] != asked.ratio:
            return differs(f"the share of the optimizer on the CPU is {has['ratio']:g}, should be {asked.ratio:g}", has)
    return holds(wanted)


CLAIM = Claim(
    id="AT003",
    name="optimizer-elsewhere",
    question="are optimizer states and master weights where they are asked to be?",
    moment="built",
    look=_look,
    judge=_judge,
    key="zero.offload_optimizer.device",
    gates=("OF003", "OF004", "OF006"),
    fix="`nvme` needs ZeRO stage 3, `cpu` stage 1 or more; write `device` out",
)
