# SPDX-License-Identifier: Apache-2.0
"""Calibrations as text and as JSON: what a run has changed, and the line of a plan that uses one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.plan.planner import Plan
from harness.plan.time.calibration import Calibration, RateFactor
from harness.units import pluralize

_NAMES = {
    "compute": "compute",
    "collectives": "collectives",
    "cpu_optimizer": "CPU optimizer",
    "nvme": "NVMe",
    "pcie": "PCIe",
    "gpu_optimizer": "GPU optimizer",
}


def format_calibration(plan: Plan) -> list[str]:
    """One line: by what a plan is calibrated, or why a calibration of such GPUs is not used; none without one."""
    if plan.calibration is not None:
        each = plan.calibration
        runs = pluralize(len(each.runs), "run")
        return [f"Calibrated by {runs} on this kind of host ({each.date}): {_format_factors(each)}"]
    return [f"Not calibrated: {plan.calibration_note}"] if plan.calibration_note else []


def render_calibrations(path: Path, changed: Sequence[Calibration]) -> str:
    """The factors of the machines whose runs were added."""
    lines: list[str] = []
    for each in changed:
        lines += [f"{each.fingerprint.title}, {pluralize(len(each.runs), 'run')}", ""]
        rows = [(_NAMES[name], each.rates[name]) for name in _NAMES if name in each.rates_in_runs]
        rows += [("allocated memory", each.allocated)] if each.allocated else []
        rows += [("reserved over allocated", each.reserved)] if each.reserved else []
        lines += [f"  {name.ljust(24)}{_format_factor(rate)}" for name, rate in rows]
        others = [_NAMES[name] for name in _NAMES if name not in each.rates_in_runs]
        lines += [f"  not in these runs, as before: {', '.join(others)}"] if others else []
        lines.append("")
    lines.append(f"Wrote {path}. `harness plan` uses it for plans of the same machine, GPUs and versions.")
    return "\n".join(lines)


def calibrations_as_dict(path: Path, changed: Sequence[Calibration]) -> dict[str, Any]:
    """The file, and each machine with its factors."""
    return {"format_version": 1, "file": str(path), "calibrations": [each.summary() for each in changed]}


def _format_factors(each: Calibration) -> str:
    parts = [f"{_NAMES[name]} x {each.rates[name].factor:.2f}" for name in _NAMES if name in each.rates_in_runs]
    parts += [f"allocated x {each.allocated.factor:.2f}"] if each.allocated else []
    return ", ".join(parts)


def _format_factor(rate: RateFactor) -> str:
    return f"x {rate.factor:.3f} (x {rate.factor / rate.spread:.2f} to {rate.factor * rate.spread:.2f})"
