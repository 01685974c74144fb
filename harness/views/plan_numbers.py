# SPDX-License-Identifier: Apache-2.0
"""Numbers of an estimate as text, with no more figures than it has."""

from __future__ import annotations

from typing import Any

from harness.plan.search.alternatives import title_of
from harness.plan.settings.checkpointed_layers import describe_checkpointing
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.cost_range import CostRange
from harness.units import format_bytes, format_count

Range = tuple[float, float]
_UNITS = ((240 * 3600.0, 86400.0, "days"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min"), (1.0, 1.0, "s"))
"""From so many seconds on, the seconds of the unit, and its name."""


def format_size(count: float) -> str:
    """`44.7 GiB`, `1.30 TiB`: enough to compare with what there is."""
    if not 1 << 20 <= count < 1 << 40:
        return format_bytes(count)
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def format_number(value: float) -> str:
    """Two figures: `6,300`, `0.42`; from a million on with a suffix: `150 M`."""
    rounded = float(f"{value:.1e}")
    if rounded >= 1e6:
        number, suffix = format_count(rounded).split()
        return f"{number.rstrip('0').rstrip('.')} {suffix}"
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.1f}" if rounded >= 1 else f"{rounded:.2g}"


def format_range(values: Range) -> str:
    """`5,000 to 7,800`; one number where both look alike."""
    least, most = map(format_number, values)
    return least if least == most else f"{least} to {most}"


def format_estimate(value: float, values: Range | None) -> str:
    """`6,300 (5,000 to 7,800)`."""
    return format_number(value) if values is None else f"{format_number(value)} ({format_range(values)})"


def format_time(seconds: float, values: Range) -> str:
    """`2.8 min (2.2 to 3.5)`."""
    size, unit = _unit_of(seconds)
    return f"{format_number(seconds / size)} {unit} ({format_range((values[0] / size, values[1] / size))})"


def format_time_range(values: Range) -> str:
    """`2.2 to 3.5 min`."""
    size, unit = _unit_of(values[1])
    return f"{format_range((values[0] / size, values[1] / size))} {unit}"


def _unit_of(seconds: float) -> tuple[float, str]:
    return next(((size, unit) for limit, size, unit in _UNITS if seconds >= limit), (0.001, "ms"))


def format_share(share: float) -> str:
    """`36%`, below 10 % with one decimal: `4.2%`."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def parallel_terms(settings: PlanSettings) -> list[str]:
    """The parallel sizes above 1: `tensor 2`."""
    sizes = {
        "tensor": settings.tensor_parallel_size,
        "pipeline": settings.pipeline_parallel_size,
        "sequence": settings.sequence_parallel_size,
    }
    return [f"{name} {size}" for name, size in sizes.items() if size > 1]


def describe_setting(settings: PlanSettings) -> str:
    """`ZeRO-3, sequence 8, micro-batch 1 x 4, gradient checkpointing`."""
    parallel = "".join(f", {term}" for term in parallel_terms(settings))
    batch = f"micro-batch {settings.rows} x {settings.accumulation}"
    moved = ", inputs of layers in host memory" if settings.activation_device != "none" else ""
    return f"{title_of(settings)}{parallel}, {batch}, {describe_checkpointing(settings)}{moved}"


def describe_setting_briefly(settings: PlanSettings) -> str:
    """`ZeRO-3, sequence 8, 1 x 4, checkpointing`, for tables."""
    text = describe_setting(settings).replace("micro-batch ", "").removesuffix(", no gradient checkpointing")
    return text.replace("gradient checkpointing", "checkpointing").replace(", inputs of layers in", " in")


def format_cost(cost: CostRange | None) -> str:
    """Dollars, else hours, in a cell."""
    if cost is None:
        return "-"
    if cost.money_range is not None:
        return format_range(cost.money_range)
    return format_time_range((cost.hours_range[0] * 3600, cost.hours_range[1] * 3600))


def cost_as_dict(cost: CostRange) -> dict[str, Any]:
    """Hours and dollars, each with its range."""
    return {
        "hours": cost.hours,
        "hours_range": list(cost.hours_range),
        "gpu_hours": cost.gpu_hours,
        "gpu_hours_range": list(cost.gpu_hours_range),
        "dollars": cost.money,
        "dollars_range": list(cost.money_range) if cost.money_range is not None else None,
    }
