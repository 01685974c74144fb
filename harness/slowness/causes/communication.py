"""Communication-bound: ranks wait for collectives, or for each other in them."""

from __future__ import annotations

from typing import Any

from harness.plan.settings import Settings
from harness.slowness.case import Case, Setting, Slow, larger, percent
from harness.units import format_seconds

LIMIT = 0.20
_PARTS = ("collectives", "parameters gathered after the step", "tensor and sequence parallelism", "pipeline messages")


def look(case: Case) -> Slow | None:
    """More than a fifth of the step in collectives; where that was not measured, as planned."""
    measured, planned = case.share("communication"), case.planned(*_PARTS)
    share = measured if measured is not None else planned
    if share is None or share < LIMIT or (case.told("world") or 2) < 2:
        return None
    evidence = []
    if measured is not None:
        spent = format_seconds(case.measured["seconds_communication"])
        evidence.append(
            f"`seconds_communication` is {spent} of a step of {format_seconds(case.step)} ({percent(share)})"
        )
    if planned is not None:
        evidence.append(f"the plan expects {percent(planned)} of the step in communication that nothing hides")
    if case.start.get("clock") == "device":
        evidence.append("by the device's clock, so what computation hides is counted too")
    s = case.settings
    return Slow(
        "communication",
        "communication",
        share,
        tuple(evidence),
        _settings(s) if s else (),
        ("waiting for a slow rank counts as communication on all others: look at the ranks beside each other",),
        planned=measured is None,
    )


def _settings(s: Settings) -> tuple[Setting, ...]:
    """What moves less: fewer, larger micro-batches; a lower stage; overlap; ZeRO++ across hosts."""
    found = list(larger(s))
    for stage in range(1, s.stage):
        sets: dict[str, Any] = {"zero.stage": stage, "zero.offload_param": None}
        found.append(Setting(f"ZeRO stage {stage}, which gathers fewer parameters", sets))
    if s.stage in (1, 2, 3) and not s.overlap:
        found.append(Setting("reduce while the backward pass goes on", {"zero.overlap_comm": True}))
    if s.stage == 3 and s.hosts > 1:
        sets = {"deepspeed.zero_optimization.zero_hpz_partition_size": s.ranks_per_host}
        found.append(Setting("a second shard inside each host (ZeRO++ hpZ)", sets))
    return tuple(found)
