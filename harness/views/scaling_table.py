# SPDX-License-Identifier: Apache-2.0
"""The same degrees and batch on several numbers of GPUs, as a table and as JSON. Counts nothing but the efficiency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.plan.degrees.degrees_plan import DegreesPlan
from harness.units import format_bytes, format_seconds
from harness.views.style import Style

_HEAD = ("GPUs", "memory", "step", "tokens/s", "a GPU", "efficiency", "MFU", "most of the step")


class ScalingRow(NamedTuple):
    """A number of GPUs and its plan, or the reason why it has none."""

    gpus: int
    plan: DegreesPlan | None
    why_not: str = ""


def render_scaling(rows: Sequence[ScalingRow], style: Style) -> str:
    """A line for each number of GPUs. Efficiency: the rate of a GPU over that of the first line that fits."""
    lines, reasons = list[tuple[str, ...]]([_HEAD]), list[str]()
    first = next((row.plan for row in rows if row.plan is not None), None)
    for row, body in zip(rows, scaling_as_dict(rows)["rows"], strict=True):
        if row.plan is None:
            reasons.append(f"{row.gpus:,} GPUs: {row.why_not}")
            lines.append((f"{row.gpus:,}", *["-"] * (len(_HEAD) - 1)))
            continue
        if first is not None and row.plan.work.tokens != first.work.tokens:
            reasons.append(f"{row.gpus:,} GPUs: {row.plan.work.tokens:,.0f} tokens a step, which data ranks can share")
        share, part = body["efficiency"], body["bound_by"]
        lines.append(
            (
                f"{row.gpus:,}",
                format_bytes(body["gpu_bytes"]) + ("" if row.plan.fits else ", does not fit"),
                format_seconds(body["step_seconds"]),
                f"{body['tokens_per_second']:,.0f}",
                f"{body['tokens_per_second'] / row.gpus:,.0f}",
                "-" if share is None else f"{share:.0%}",
                f"{body['mfu']:.0%}",
                f"{part['name']} {part['share']:.0%}; exposed traffic and waits {body['overhead_share']:.0%}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.rjust(w) for cell, w in zip(line[:-1], widths, strict=False)) for line in lines]
    table = [f"{text}  {line[-1]}" for text, line in zip(table, lines, strict=True)]
    head = []
    if first is not None:
        name = style.paint(first.request.model, "", bold=True)
        head = [f"{name} on {first.device.name}, {first.work.tokens:,.0f} tokens a step", ""]
    return "\n".join([*head, *table, *([""] if reasons else []), *reasons])


def scaling_as_dict(rows: Sequence[ScalingRow]) -> dict[str, Any]:
    """Seconds, bytes, tokens a second; shares from 0 to 1."""
    base = next((_rate(row.plan) for row in rows if row.plan is not None and row.plan.fits), None)
    return {"rows": [_row_as_dict(row, base) for row in rows]}


def _row_as_dict(row: ScalingRow, base: float | None) -> dict[str, Any]:
    plan = row.plan
    if plan is None:
        return {"gpus": row.gpus, "why_not": row.why_not}
    busy = ("matrix products", "attention", "norms, activations, residuals", "optimizer step")
    name, _, exposed = max(plan.time.parts, key=lambda part: part[2])
    overhead = sum(part[2] for part in plan.time.parts if part[0] not in busy)
    return {
        "gpus": row.gpus,
        "fits": plan.fits,
        "gpu_bytes": plan.fullest.total,
        "step_seconds": plan.time.seconds,
        "tokens_per_second": plan.work.tokens / plan.time.seconds,
        "efficiency": None if base is None or not plan.fits else _rate(plan) / base,
        "mfu": plan.mfu,
        "bound_by": {"name": name, "share": exposed / plan.time.seconds},
        "overhead_share": overhead / plan.time.seconds,
    }


def _rate(plan: DegreesPlan) -> float:
    """Tokens a second and GPU."""
    return plan.work.tokens / plan.time.seconds / plan.work.world_size
