# SPDX-License-Identifier: Apache-2.0
"""The numbers in a message about memory, compared with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.units import format_bytes, parse_bytes


def compare_with_plan(details: Mapping[str, str], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on a GPU that ran out of memory. `plan` is a run's `plan.json`. Empty where the plan has no peak."""
    peak, capacity = plan.get("gpu_peak_bytes"), plan.get("gpu_capacity_bytes")
    if not isinstance(peak, int) or not peak:
        return ()
    notes = [f"the plan expects {format_bytes(peak)} per GPU at the peak, in {plan.get('gpu_peak_phase') or 'a step'}"]
    total = _parse_detail(details, "total")
    usage = _parse_detail(details, "allocated") or _parse_detail(details, "used")
    request = _parse_detail(details, "wanted")
    if total and isinstance(capacity, int) and abs(total - capacity) > capacity // 10:
        notes.append(
            f"this GPU has {format_bytes(total)}, the plan assumed {format_bytes(capacity)}: set `cluster.gpu`"
        )
    if usage and request:
        need = usage + request
        comparison = "more" if need > peak else "less"
        notes.append(
            f"torch held {format_bytes(usage)} and requested {format_bytes(request)} more, {comparison} than the plan"
        )
    return tuple(notes)


def _parse_detail(details: Mapping[str, str], name: str) -> int:
    try:
        return parse_bytes(details.get(name, "0"))
    except ValueError:
        return 0
