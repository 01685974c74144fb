"""What the plan predicts of a changed spec: the same run with other keys, through the loader, the gates and the plan.

Nothing is guessed: where the plan makes no time, the prediction has none.
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
from harness.plan.resolved_run import ResolvedRun, resolve_run
from harness.spec.spec_loader import load_spec


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """The plan before and after; `refused` is the first finding that would stop the changed spec."""

    before: Plan
    after: Plan | None
    blocking_finding: Finding | None = None

    @property
    def gain(self) -> float | None:
        """Share of the planned step that is saved; None where no time is planned."""
        if self.after is None or self.before.time is None or self.after.time is None:
            return None
        return 1 - self.after.time.seconds / self.before.time.seconds


def predict_plan(plan: Plan, sets: Mapping[str, Any], base_dir: Path | None, gpu: str | None) -> PlanPrediction:
    """Plan the run of `plan` with other keys. Raises nothing."""
    run = plan.run
    changed, errors = _resolve_and_check(run, sets)
    if errors:
        known = {
            f.gate for f in _resolve_and_check(run, {})[1]
        }  # what the run itself was let through with, or an older harness
        errors = tuple(f for f in errors if f.gate not in known)
    if changed is None or errors:
        return PlanPrediction(plan, None, next(iter(errors), None))
    return PlanPrediction(plan, make_plan(changed, base_dir, gpu))


def _resolve_and_check(run: ResolvedRun, sets: Mapping[str, Any]) -> tuple[ResolvedRun | None, tuple[Finding, ...]]:
    """The changed run, and every error that the loader and the gates have about it."""
    raw = run.spec.model_dump(mode="json", exclude_unset=True)
    for key, value in sets.items():
        _set_key(raw, key.split("."), value)
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    loaded = load_spec(f"{run.name}.yaml", (), resolve_target(), text=text)
    if loaded.spec is None or loaded.source is None:
        return None, loaded.findings
    world = None if run.cluster is not None else run.parallel_dims.world_size
    changed = resolve_run(loaded.spec, name=run.name, cluster=run.cluster, world_size=world)
    return changed, check_run(changed, loaded.source).errors


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
