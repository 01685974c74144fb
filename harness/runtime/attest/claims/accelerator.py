"""AT018: the kind of device that the ranks compute on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds, where
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    if not seen.asked.accelerated:
        raise NotApplicable("the launch counted no accelerators")
    return seen.engine.device.type


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:  # noqa: ARG001
    on_cpu = [rank for rank, kind in enumerate(found) if kind == "cpu"]
    if not on_cpu:
        return holds(found[0])
    return differs(f"ranks compute on the CPU{where(on_cpu, len(found))}, and the launch counted accelerators", "cpu")


CLAIM = Claim(
    id="AT018",
    name="on-the-cpu",
    question="are the ranks on the accelerators that the launch counted?",
    moment="built",
    look=_look,
    judge=_judge,
    gates=("EN015", "EN054"),
    fix="see `harness doctor` on that host; where the CPU is meant, launch with DS_ACCELERATOR=cpu",
)
