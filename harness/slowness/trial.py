"""What the plan predicts of a changed spec: the same run with other keys, through the loader, the gates and the plan.

Nothing is guessed: where the plan makes no time, the prediction has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.facts.deepspeed import target
from harness.findings import Finding
from harness.gates import check
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run, resolve
from harness.spec.load import load


@dataclass(frozen=True, slots=True)
class Prediction:
    """The plan before and after; `refused` is the first finding that would stop the changed spec."""

    before: Plan
    after: Plan | None
    refused: Finding | None = None

    @property
    def gain(self) -> float | None:
        """Share of the planned step that is saved; None where no time is planned."""
        if self.after is None or self.before.time is None or self.after.time is None:
            return None
        return 1 - self.after.time.seconds / self.before.time.seconds


def predict(plan: Plan, sets: Mapping[str, Any], base_dir: Path | None, gpu: str | None) -> Prediction:
    """Plan the run of `plan` with other keys. Raises nothing."""
    run = plan.run
    changed, errors = _gated(run, sets)
    if errors:
        known = {f.gate for f in _gated(run, {})[1]}  # what the run itself was let through with, or an older harness
        errors = tuple(f for f in errors if f.gate not in known)
    if changed is None or errors:
        return Prediction(plan, None, next(iter(errors), None))
    return Prediction(plan, make_plan(changed, base_dir, gpu))


def _gated(run: Run, sets: Mapping[str, Any]) -> tuple[Run | None, tuple[Finding, ...]]:
    """The changed run, and every error that the loader and the gates have about it."""
    raw = run.spec.model_dump(mode="json", exclude_unset=True)
    for key, value in sets.items():
        _put(raw, key.split("."), value)
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    loaded = load(f"{run.name}.yaml", (), target(), text=text)
    if loaded.spec is None or loaded.source is None:
        return None, loaded.findings
    world = None if run.cluster is not None else run.degrees.world
    changed = resolve(loaded.spec, name=run.name, cluster=run.cluster, world_size=world)
    return changed, check(changed, loaded.source).errors


def _put(data: dict[str, Any], path: list[str], value: Any) -> None:
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
