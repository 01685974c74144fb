# SPDX-License-Identifier: Apache-2.0
"""A GPU that is throttled, limited in power, or badly connected: all ranks wait for the slowest one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.slowness.run_measurements import RunMeasurements, Slowdown, format_percent
from harness.units import finite_number

LIMIT = 0.05
_CLOCK_PROBLEMS = {"thermal", "slowdown", "power_limit"}
_MAX_EVIDENCE = 4


def detect(run: RunMeasurements) -> Slowdown | None:
    """By its clock, or by its lanes and the copies of the plan, a GPU costs more than 5% of the step."""
    shares = [(_lost_share(run, line), line) for line in run.gpu_lines if line.get("state") == "problem"]
    costly = sorted((pair for pair in shares if pair[0] >= LIMIT), key=lambda pair: -pair[0])
    if not costly:
        return None
    evidence = [
        f"rank {line.get('rank')} on {line.get('host')}, GPU {line.get('bus_id') or line.get('uuid') or '?'}, "
        f"{line.get('evidence')} (step {line.get('step')}): up to {format_percent(share)}"
        for share, line in costly[:_MAX_EVIDENCE]
    ]
    if len(costly) > _MAX_EVIDENCE:
        evidence.append(f"and {len(costly) - _MAX_EVIDENCE} more reports of GPUs")
    advice = (
        "leave the host out (`harness launch --exclude HOST`) until `nvidia-smi -q` there shows the same clocks, "
        "limits and PCIe link under load as on the others",
    )
    return Slowdown("gpu", "an unhealthy GPU, at most", costly[0][0], tuple(evidence), advice=advice)


def _lost_share(run: RunMeasurements, line: Mapping[str, Any]) -> float:
    """The share of the step that the GPU costs at most: as if all of it were computed, at its clock."""
    problems = line.get("problems")
    problems = {kind for kind in problems if isinstance(kind, str)} if isinstance(problems, list) else set()
    share = 0.0
    if problems & _CLOCK_PROBLEMS:
        share = 1 - _ratio(line, "sm_clock")
    if "pcie_width" in problems:
        copies = run.planned_share("PCIe", "PCIe at the step") or 0.0
        extra = copies * (1 / _ratio(line, "pcie_width") - 1)
        share = max(share, extra / (1 + extra))
    return share


def _ratio(line: Mapping[str, Any], name: str) -> float:
    """The value over the highest possible one; 1 where either is not known."""
    value, most = finite_number(line.get(name)), finite_number(line.get(f"{name}_max"))
    return min(1.0, value / most) if value and most else 1.0
