# SPDX-License-Identifier: Apache-2.0
"""Error factors of plans against published measurements, by group: for the fitted sources and for the others."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.published.published_rows import PlannedRow, group_of
from benchmarks.published.set_aside import is_set_aside

_MIN_ROWS, _MIN_SOURCES = 10, 4
_INSIDE = 0.8
"""Share of measured times that ranges are to hold."""
TARGETS = {
    "dense, one host": (1.15, 1.4),
    "dense, several hosts": (1.3, 1.8),
    "long": (1.2, 1.35),
    "offload": (1.35, 1.9),
    "MoE": (1.5, 2.2),
    "memory, allocated": (1.1, 1.3),
}
"""Median and 90 % of the error factor that a group is to reach."""


@dataclass(frozen=True)
class Comparison:
    """One figure: what was planned by what was measured, and the planned range."""

    group: str
    source: str
    row: str
    measured: float
    planned: float
    fast: float
    slow: float

    @property
    def factor(self) -> float:
        """exp(|log(planned / measured)|)."""
        return math.exp(abs(math.log(self.planned / self.measured)))

    @property
    def width_needed(self) -> float:
        """The power to which both sides of the range would have to be raised to reach what was measured."""
        side = self.slow if self.measured > self.planned else self.fast
        return math.log(self.measured / self.planned) / math.log(side / self.planned)

    @property
    def is_inside(self) -> bool:
        """Does the planned range contain what was measured?"""
        return self.fast <= self.measured <= self.slow


def compare_rows(rows: Iterable[PlannedRow]) -> list[Comparison]:
    """Step seconds, and memory where it was measured and a spec can say formats and checkpointing."""
    comparisons = []
    for planned in rows:
        if planned.plan is None or planned.plan.time is None or planned.plan.memory is None:
            continue
        row, time, memory = planned.row, planned.plan.time, planned.plan.memory
        seconds = measured_seconds(planned)
        if seconds:
            comparisons.append(Comparison(group_of(row), row["source"], row["id"], seconds, time.seconds, *time.range))
        if row.get("checkpointing") not in ("full", "none") or _is_pure_16_bit(row):
            continue
        for name, key, peak, ends in (
            ("allocated", "peak_allocated_gib", memory.allocated_peak, memory.allocated_peak_range),
            ("reserved", "peak_reserved_gib", memory.reserved_peak, memory.reserved_peak_range),
            ("nvidia-smi", "nvidia_smi_gib", memory.nvidia_smi_peak, memory.nvidia_smi_peak_range),
        ):
            if measured := row["measured"].get(key):
                group = f"memory, {name}"
                comparisons.append(Comparison(group, row["source"], row["id"], measured * 2**30, peak, *ends))
    return comparisons


def measured_seconds(planned: PlannedRow) -> float | None:
    """Seconds of a step that the source gives or that follow from its tokens a second; None where it has neither."""
    measured, plan = planned.row["measured"], planned.plan
    tokens = measured.get("tokens_per_s_per_gpu")
    if tokens and plan is not None and plan.settings is not None:
        return plan.settings.tokens_per_step / (tokens * planned.row["gpus"])
    return measured.get("step_seconds")


def format_verdicts(rows: Iterable[PlannedRow]) -> list[str]:
    """A Markdown table: the ends of jobs by what their plans say, where a spec can say checkpointing and formats."""
    counts: Counter[tuple[str, str]] = Counter()
    for planned in rows:
        row, verdict = planned.row, planned.row["measured"].get("verdict")
        is_said = row.get("checkpointing") in ("full", "none") or verdict != "runs"
        if planned.plan is None or planned.plan.fit.fits is None or not verdict or not is_said or _is_pure_16_bit(row):
            continue
        fit = planned.plan.fit
        counts[verdict, "not certain" if fit.uncertain else "fits" if fit.fits else "does not fit"] += 1
    answers = ("fits", "not certain", "does not fit")
    lines = ["| Published | Planned: " + " | ".join(answers) + " |", "| --- | ---: | ---: | ---: |"]
    for verdict, name in (("runs", "ran"), ("oom_gpu", "out of GPU memory"), ("oom_host", "out of host memory")):
        lines.append(f"| {name} | " + " | ".join(str(counts[verdict, answer]) for answer in answers) + " |")
    return lines


def _is_pure_16_bit(row: Mapping[str, Any]) -> bool:
    """Weights, masters and states in 16 bits, by loops that keep other buffers than DeepSpeed's."""
    is_named = "pure_bf16" in row.get("features", [])
    return is_named or any(str(text).startswith("pure") for text in row.get("assumed", []))


def error_factors(comparisons: Sequence[Comparison]) -> tuple[float, float, float]:
    """Median of planned / measured, median and 90 % of the error factor."""
    factors = sorted(each.factor for each in comparisons)
    ratios = [each.planned / each.measured for each in comparisons]
    return statistics.median(ratios), statistics.median(factors), factors[math.ceil(0.9 * len(factors)) - 1]


def format_table(comparisons: Sequence[Comparison], keep: Callable[[str], bool] = lambda _: True) -> list[str]:
    """A Markdown table by group: the sources that constants were fitted to, and those that were set aside."""
    head = (
        "Group",
        "Sources",
        "Rows of sources",
        "Planned/measured",
        "Error, median",
        "90 %",
        "Inside the range",
        "Target",
    )
    lines = ["| " + " | ".join(head) + " |", "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"]
    groups: dict[tuple[str, bool], list[Comparison]] = defaultdict(list)
    for each in comparisons:
        if keep(each.source):
            groups[each.group, is_set_aside(each.source)].append(each)
    for (group, set_aside), members in sorted(groups.items()):
        sources = len({each.source for each in members})
        ratio, median, most = error_factors(members)
        inside = sum(each.is_inside for each in members) / len(members)
        cells = (
            group,
            "set aside" if set_aside else "fitted",
            f"{len(members)} of {sources}",
            f"{ratio:.2f}",
            f"{median:.2f}",
            f"{most:.2f}",
            f"{inside:.0%}",
            _judge(group, set_aside, members, sources, median, most),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _judge(group: str, set_aside: bool, members: Sequence[Comparison], sources: int, median: float, most: float) -> str:
    target = TARGETS.get(group)
    if target is None or not set_aside:
        return ""
    wanted = f"{target[0]:g} and {target[1]:g}"
    if len(members) < _MIN_ROWS or sources < _MIN_SOURCES:
        return f"{wanted}: too few to judge"
    return f"{wanted}: {'reached' if median <= target[0] and most <= target[1] else 'missed'}"


def format_widths(comparisons: Sequence[Comparison]) -> str:
    """Two sentences about the ranges of the step times."""
    steps = [each for each in comparisons if not each.group.startswith("memory")]
    widths = sorted(each.slow / each.fast for each in steps)
    inside = sum(each.is_inside for each in steps) / len(steps)
    text = (
        f"Half of the ranges of step times are no wider than a factor of {statistics.median(widths):.2f}, 90 % no wider"
        f" than {_quantile(widths, 0.9):.2f}; {inside:.0%} of the measured times lie inside."
    )
    judges = [each for each in steps if is_set_aside(each.source)]
    if not judges:
        return text
    needed = _quantile([each.width_needed for each in judges], _INSIDE)
    width = statistics.median(each.slow / each.fast for each in judges) ** needed
    return f"{text} Ranges that hold {_INSIDE:.0%} of the set-aside times would be {width:.1f} wide in the median."


def _quantile(values: Iterable[float], share: float) -> float:
    """The least value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]
