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


def format_host_rates(planned: Iterable[PlannedRow]) -> list[str]:
    """Seconds that the CPU optimizer of each publication took, what the planned other parts leave, by those planned.
    Factor: the error of its rows by the geometric mean of the others with as much known of their threads.
    """
    rates = _host_rates(planned)
    lines = ["| Publication | Threads | Rows | Measured/planned | Of all others | Factor |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    factors = []
    for (threads, source), own in sorted(rates.items()):
        others = [_mean(values) for (known, name), values in rates.items() if known == threads and name != source]
        if others:
            factors.append(math.exp(abs(math.log(_mean(own) / _mean(others)))))
            figures = f"{_mean(own):.2f} | {_mean(others):.2f} | {factors[-1]:.2f}"
            lines.append(f"| {source} | {threads} | {len(own)} | {figures} |")
    return [*lines, "", f"Median factor {statistics.median(factors):.2f}."]


def _host_rates(planned: Iterable[PlannedRow]) -> dict[tuple[str, str], list[float]]:
    """Of rows whose CPU step is a third of the step or more, by what is known of their threads, and source."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, each in _offload_rows(planned):
        plan = row.plan
        if each is None or plan is None or plan.time is None or plan.settings is None:
            continue
        step = next((part.exposed for part in plan.time.parts if part.name == "CPU optimizer"), 0.0)
        left = each.measured - plan.time.seconds + step
        if step > plan.time.seconds / 3 and left > each.measured / 10:
            rates[str(plan.settings.step_threads or "not known"), row.row["source"]].append(left / step)
    return rates


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
