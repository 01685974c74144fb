# SPDX-License-Identifier: Apache-2.0
"""The collectives of a step as a table: bytes that a rank sends, seconds, and their size beside DDP's all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan.time.collective_traffic import CollectiveTraffic
from harness.units import format_bytes, format_seconds
from harness.views.style import Style


def render_traffic(rows: Sequence[CollectiveTraffic], style: Style) -> str:
    """The table of `harness plan --long`; empty for a run on one rank."""
    if not rows:
        return ""
    names = [f"{row.collective}, {row.carries}" for row in rows]
    groups = [f"{row.ranks:,} {row.group}" for row in rows]
    head = "Sent by a rank per step"
    left, middle = max(len(head) - 2, *map(len, names)), max(map(len, groups))
    lines = [style.paint(f"{head:<{left + 2}}  {'ranks':<{middle}}  {'bytes':>11}  {'time':>8}  of DDP", "", bold=True)]
    for row, name, group in zip(rows, names, groups, strict=True):
        time = "-" if row.seconds is None else format_seconds(row.seconds)
        ratio = "" if row.of_ddp is None else f"{row.of_ddp:>6.2f}"
        lines.append(f"  {name:<{left}}  {group:<{middle}}  {format_bytes(row.sent):>11}  {time:>8}  {ratio}".rstrip())
    shares = [row.of_ddp for row in rows if row.of_ddp is not None]
    if shares:
        lines.append(f"  data parallelism in all: {sum(shares):.2f} of DDP's one all-reduce of the same gradients")
    return "\n".join(lines)


def format_sent(rows: Sequence[CollectiveTraffic]) -> list[str]:
    """The bytes that a GPU sends in a step, by what they carry; nothing of one rank."""
    names = [row.carries.partition(" in ")[0].partition(" forward")[0] for row in rows]
    names = [f"{name} ({row.group})" if names.count(name) > 1 else name for row, name in zip(rows, names, strict=True)]
    parts = ", ".join(f"{format_bytes(row.sent)} {name}" for row, name in zip(rows, names, strict=True))
    return [f"a GPU sends {format_bytes(sum(row.sent for row in rows))} a step: {parts}"] if rows else []
