# SPDX-License-Identifier: Apache-2.0
"""Data-bound: steps wait for their data. The plan has no data time: the measured share bounds the gain."""

from __future__ import annotations

from harness.slowness.run_measurements import RunMeasurements, Slowdown
from harness.units import format_seconds

LIMIT = 0.10


def detect(run: RunMeasurements) -> Slowdown | None:
    """More than a tenth of the step waits for data."""
    share = run.measured_share("data")
    if share is None or share < LIMIT:
        return None
    evidence = (
        run.describe_share("data"),
        f"without it the same step would take {format_seconds(run.step_seconds - run.medians['seconds_data'])}, "
        "which is the most that can be gained here",
    )
    advice = (
        "prepared tokens are memory-mapped from `data.cache_dir`: put it on a local disk, not on a network file system",
        "give the ranks enough cores: fewer ranks per host than cores, and `OMP_NUM_THREADS` at most cores / ranks",
    )
    return Slowdown("data", "waiting for data", share, evidence, advice=advice)
