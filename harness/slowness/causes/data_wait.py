"""Data-bound: steps wait for their data. The plan knows nothing of data; what was measured bounds what can be won."""

from __future__ import annotations

from harness.slowness.run_measurements import RunMeasurements, Slowdown, format_percent
from harness.units import format_seconds

LIMIT = 0.10


def detect(case: RunMeasurements) -> Slowdown | None:
    """More than a tenth of the step."""
    share = case.measured_share("data")
    if share is None or share < LIMIT:
        return None
    waited = case.medians["seconds_data"]
    evidence = (
        f"`seconds_data` is {format_seconds(waited)} of a step of {format_seconds(case.step_seconds)} ({format_percent(share)})",
        f"without it the same step would take {format_seconds(case.step_seconds - waited)}; more cannot be won here",
    )
    advice = (
        "prepared tokens are mapped from `data.cache_dir`: let it lie on a local disk, not on a network file system",
        "give the ranks cores: fewer ranks a host than cores, and `OMP_NUM_THREADS` no larger than cores over ranks",
    )
    return Slowdown("data", "waiting for data", share, evidence, advice=advice)
