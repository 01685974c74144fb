"""Data-bound: steps wait for their data. The plan knows nothing of data; what was measured bounds what can be won."""

from __future__ import annotations

from harness.slowness.case import Case, Slow, percent
from harness.units import format_seconds

LIMIT = 0.10


def look(case: Case) -> Slow | None:
    """More than a tenth of the step."""
    share = case.share("data")
    if share is None or share < LIMIT:
        return None
    waited = case.measured["seconds_data"]
    evidence = (
        f"`seconds_data` is {format_seconds(waited)} of a step of {format_seconds(case.step)} ({percent(share)})",
        f"without it the same step would take {format_seconds(case.step - waited)}; more cannot be won here",
    )
    advice = (
        "prepared tokens are mapped from `data.cache_dir`: let it lie on a local disk, not on a network file system",
        "give the ranks cores: fewer ranks a host than cores, and `OMP_NUM_THREADS` no larger than cores over ranks",
    )
    return Slow("data", "waiting for data", share, evidence, advice=advice)
