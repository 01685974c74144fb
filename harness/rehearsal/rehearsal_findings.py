# SPDX-License-Identifier: Apache-2.0
"""Findings about the whole run, from the figures of its rehearsal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.findings import Finding, Fix
from harness.plan.memory.memory_estimate import HOST_RESERVE
from harness.plan.planner import Plan
from harness.rehearsal.extrapolation import Quantity
from harness.units import format_bytes


def evaluate_rehearsal(quantities: Sequence[Quantity], whole: Plan) -> list[Finding]:
    """Findings for states that differ from the plan, and for memory that would not fit."""
    return [*_check_states(quantities), *_check_capacity(quantities, whole), *_plan_findings(whole)]


def _check_states(quantities: Iterable[Quantity]) -> list[Finding]:
    inexact = [q for q in quantities if "." in q.name and q.unit == "bytes" and not q.exact and " " not in q.name]
    if not inexact:
        return []
    parts = [f"`{q.name}` {int(q.measured):,} bytes, planned {int(q.planned or 0):,}" for q in inexact]
    notes = ("of the largest rank, counted on its engine after the first step", *parts)
    message = f"{len(inexact)} kinds of model states differ from the plan"
    fix = Fix("use the larger figure for the whole run, and report this: the plan should be exact")
    return [Finding("MM010", "warning", message, "zero", notes=notes, fix=fix)]


def _check_capacity(quantities: Iterable[Quantity], whole: Plan) -> list[Finding]:
    host = None if whole.capacity.host is None else whole.capacity.host * (1 - HOST_RESERVE)
    limits = {"host memory": (host, "cluster.host_memory"), "device memory": (whole.capacity.gpu, "cluster.gpu")}
    findings = []
    for q in quantities:
        capacity, key = limits.get(q.name.partition(",")[0], (None, ""))
        if capacity is None or q.high is None or q.low is None or q.high <= capacity:
            continue
        severity = "error" if q.low > capacity else "warning"
        low, high, available = (format_bytes(n) for n in (q.low, q.high, capacity))
        message = f"{q.name}: the whole run would need {low} to {high}, and {available} are available"
        fix = Fix("choose a row of `harness plan` that needs less, or more memory")
        findings.append(Finding("MM011", severity, message, key, fix=fix))  # type: ignore[arg-type]
    return findings


def _plan_findings(whole: Plan) -> list[Finding]:
    return [f for f in whole.findings if f.gate == "MM005"]
