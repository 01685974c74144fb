# SPDX-License-Identifier: Apache-2.0
"""The evaluations of a run, in `checkpoints/evaluations.json`.

An evaluation comes after the save of its step. The manifest of the checkpoint gets it then, and a resume after a kill
between the two reads it here. The best evaluation is the one with the lowest held-out loss, the first of equals: for
`checkpoint ls`, for manifests, for `checkpoint.keep_best`, and for the report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.file_io import parse_json, read_regular, replace_file

EVALUATIONS = "evaluations.json"
METRIC = "loss"
"""The value by which evaluations are compared: the held-out loss in nats per token, lower is better."""
_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Evaluations:
    """Step -> measured values, `loss` at least."""

    by_step: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> Evaluations:
        """The evaluations of a folder of checkpoints. An unusable file counts as none: then no checkpoint is the
        best, and a resume runs the evaluation of its step again.
        """
        try:
            body = parse_json(read_regular(folder / EVALUATIONS, _MAX_BYTES, follow=False).decode())
            return Evaluations({int(k): dict(v) for k, v in body.items() if isinstance(v["loss"], float)})
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return Evaluations()

    def up_to(self, step: int) -> Evaluations:
        """Those of `step` and before: a resume from an earlier step makes the rest obsolete."""
        return Evaluations({s: v for s, v in self.by_step.items() if s <= step})

    def with_evaluation(self, step: int, values: Mapping[str, Any]) -> Evaluations:
        """These evaluations and one more."""
        return Evaluations({**self.by_step, step: dict(values)})

    def best_step(self, steps: Collection[int]) -> int | None:
        """The step with the lowest finite loss of these, the first of equals; None when none has one."""
        losses = [(float(self.by_step[s]["loss"]), s) for s in steps if s in self.by_step]
        losses = [(loss, step) for loss, step in losses if math.isfinite(loss)]
        return min(losses)[1] if losses else None

    def to_manifest(self, step: int) -> dict[str, Any]:
        """For the manifest of `step`: the metric, its own evaluation, and the best and the last up to that step."""
        known = self.up_to(step)
        steps = {
            "own": step if step in known.by_step else None,
            "best": known.best_step(list(known.by_step)),
            "last": max(known.by_step, default=None),
        }
        entries = {name: None if s is None else {"step": s, **known.by_step[s]} for name, s in steps.items()}
        return {"metric": METRIC, "better": "lower", **entries}

    def write(self, folder: Path) -> None:
        """Write the file durably. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(
            folder / EVALUATIONS, json.dumps({str(s): dict(v) for s, v in sorted(self.by_step.items())}) + "\n"
        )
