"""What the evaluations of a run gave, in `checkpoints/evaluations.json`.

An evaluation comes after the save of its step, so that it cannot be in that checkpoint's manifest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.file_io import parse_json, read_regular, replace_file

EVALUATIONS = "evaluations.json"
_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Evaluations:
    """Step -> what was measured, `loss` at least."""

    by_step: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> Evaluations:
        """Of a folder of checkpoints. A file that cannot be used counts as none: nothing depends on it but a choice."""
        try:
            body = parse_json(read_regular(folder / EVALUATIONS, _MAX_BYTES, follow=False).decode())
            return Evaluations({int(k): dict(v) for k, v in body.items() if isinstance(v["loss"], float)})
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return Evaluations()

    def up_to(self, step: int) -> Evaluations:
        """Those of `step` and before: a resume from an earlier step has overtaken the rest."""
        return Evaluations({s: v for s, v in self.by_step.items() if s <= step})

    def with_evaluation(self, step: int, values: Mapping[str, Any]) -> Evaluations:
        """One more."""
        return Evaluations({**self.by_step, step: dict(values)})

    def best_step(self, steps: Collection[int]) -> int | None:
        """Of these steps the one with the lowest loss, the later one of two alike; None when none was evaluated."""
        known = [(float(self.by_step[s]["loss"]), -s) for s in steps if s in self.by_step]
        return -min(known)[1] if known else None

    def to_manifest(self) -> dict[str, Any]:
        """The last and the best, for a manifest."""
        if not self.by_step:
            return {"last": None, "best": None}
        last, best = max(self.by_step), self.best_step(list(self.by_step)) or 0
        return {
            "last": {"step": last, **self.by_step[last]},
            "best": {"step": best, **self.by_step[best]},
        }

    def write(self, folder: Path) -> None:
        """Durably. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(
            folder / EVALUATIONS, json.dumps({str(s): dict(v) for s, v in sorted(self.by_step.items())}) + "\n"
        )
