# SPDX-License-Identifier: Apache-2.0
"""Rows with offload: those that the plan misses, with the reason, and what each publication says of the CPU optimizer.

`offload_notes.json` has the reasons, by row or by source, and the launchers that a publication's scripts name.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from benchmarks.published.error_table import Comparison, compare_rows
from benchmarks.published.published_rows import NOTES, PlannedRow
from harness.plan.time.fitted_rates import FITTED

LARGEST_FACTOR = 2.2


def format_missed_rows(planned: Iterable[PlannedRow]) -> list[str]:
    """A Markdown table of the rows outside their range or off by more than 2.2, one row without a plan a line too."""
    lines = ["| Row | Planned/measured | In range | Reason |", "| --- | ---: | --- | --- |"]
    for row, each in _offload_rows(planned):
        name = row.row["id"]
        reason = NOTES["reasons"].get(name) or NOTES["reasons"].get(row.row["source"], "not explained")
        if each is None:
            lines += [f"| {name} | | | no plan: {row.why_not} |"] if row.why_not else []
        elif not each.is_inside or each.factor > LARGEST_FACTOR:
            lines.append(
                f"| {name} | {each.planned / each.measured:.2f} | {'yes' if each.is_inside else 'no'} | {reason} |"
            )
    return lines


def format_host_shares(planned: Iterable[PlannedRow]) -> list[str]:
    """What the CPU optimizer of each publication reached: its step is what the planned other parts leave. The error of
    its rows if the share were the geometric mean of the other publications' shares.
    """
    shares = _shares(planned)
    lines = [
        "| Publication | Rows | Share of the assumed bandwidth | Of all others | Factor |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    factors = []
    for source, own in sorted(shares.items()):
        others = [_mean(values) for name, values in shares.items() if name != source]
        if others:
            factors.append(math.exp(abs(math.log(_mean(own) / _mean(others)))))
            lines.append(f"| {source} | {len(own)} | {_mean(own):.3f} | {_mean(others):.3f} | {factors[-1]:.2f} |")
    middle = f"Median factor {statistics.median(factors):.2f}; the plan's share is {FITTED.host_memory_share}."
    return [*lines, "", middle]


def _shares(planned: Iterable[PlannedRow]) -> dict[str, list[float]]:
    """Of rows whose threads are unknown and whose CPU step is a third of the step or more, by source."""
    shares: dict[str, list[float]] = defaultdict(list)
    for row, each in _offload_rows(planned):
        plan = row.plan
        if each is None or plan is None or plan.time is None or plan.settings is None or plan.settings.step_threads:
            continue
        step = next((part.exposed for part in plan.time.parts if part.name == "CPU optimizer"), 0.0)
        left = each.measured - plan.time.seconds + step
        if step > plan.time.seconds / 3 and left > each.measured / 10:
            shares[row.row["source"]].append(FITTED.host_memory_share * step / left)
    return shares


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _offload_rows(planned: Iterable[PlannedRow]) -> list[tuple[PlannedRow, Comparison | None]]:
    """Rows with offload that are no adapter's and have no experts, with the comparison of their time."""
    rows = []
    for row in planned:
        is_offloaded = row.row.get("offload_optimizer") or row.row.get("offload_param")
        compared = [each for each in compare_rows([row]) if not each.group.startswith("memory")]
        if is_offloaded and (not compared or compared[0].group.startswith("offload")):
            rows.append((row, compared[0] if compared else None))
    return rows
