# SPDX-License-Identifier: Apache-2.0
"""The plan's prediction for a changed spec: the same run with other keys, through the loader, the gates and the plan.

If the plan has no time, the prediction has none either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.facts.deepspeed_version import resolve_target
from harness.findings import Finding
from harness.gates import check_run
from harness.plan.planner import Plan, make_plan
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.spec_loader import load_spec


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """The plans before and after; `blocking_finding` is the first finding that stops the changed spec."""

    before: Plan
    after: Plan | None
    blocking_finding: Finding | None = None

    @property
    def gain(self) -> float | None:
        """The saving as a share of the planned step; None where no time is planned."""
        if self.after is None or self.before.time is None or self.after.time is None:
            return None
        return 1 - self.after.time.seconds / self.before.time.seconds


def predict_plan(plan: Plan, sets: Mapping[str, Any], base_dir: Path | None, gpu: str | None) -> PlanPrediction:
    """Plan the run of `plan` with other keys. Raises nothing."""
    run = plan.run
    changed_run, errors = _resolve_and_check(run, sets)
    if errors:
        # The run itself may have errors: the user ignored them, or an older harness had no such gate.
        known_gates = {f.gate for f in _resolve_and_check(run, {})[1]}
        errors = tuple(f for f in errors if f.gate not in known_gates)
    if changed_run is None or errors:
        return PlanPrediction(plan, None, next(iter(errors), None))
    return PlanPrediction(plan, make_plan(changed_run, base_dir, gpu, with_alternatives=False, build=False))


def _resolve_and_check(run: ResolvedRun, sets: Mapping[str, Any]) -> tuple[ResolvedRun | None, tuple[Finding, ...]]:
    """The changed run, and every error that the loader and the gates have about it."""
    raw = run.spec.model_dump(mode="json", exclude_unset=True)
    for key, value in sets.items():
        _set_key(raw, key.split("."), value)
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    load_result = load_spec(f"{run.name}.yaml", (), resolve_target(), text=text)
    if load_result.spec is None or load_result.source is None:
        return None, load_result.findings
    world = None if run.cluster is not None else run.parallel_dims.world_size
    changed_run = resolve_run(load_result.spec, name=run.name, cluster=run.cluster, world_size=world)
    return changed_run, check_run(changed_run, load_result.source).errors


def _set_key(data: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = data.get(part)
        if not isinstance(inner, dict):
            if value is None:
                return
            inner = data[part] = {}
        data = inner
    if value is None:
        data.pop(path[-1], None)
    else:
        data[path[-1]] = value
