# SPDX-License-Identifier: Apache-2.0
"""The interface of a tracker, the run that it logs, and the scalars of a line of metrics.jsonl.

DeepSpeed's own monitor is not used: it logs the loss and the learning rate alone, counts in samples, and has no
evaluations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.spec.sections.telemetry_spec import TelemetrySpec

SCALAR_PREFIXES = {"step": "train", "eval": "eval", "save": "save"}
"""Type of a line whose numbers become curves -> prefix of the curves' names."""


class TrackerBackend(Protocol):
    """An open tracker. Both methods may raise and may block: `TrackerThread` calls them in a thread."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""

    def close(self) -> None:
        """Flush and close."""


@dataclass(frozen=True, slots=True)
class TrackerTarget:
    """The run that a tracker logs: its folder and its names."""

    spec: TelemetrySpec
    folder: Path
    run_id: str
    name: str

    def project(self, variable: str) -> str:
        """The project of `wandb`, the experiment of `mlflow`: of the spec, else of the tracker's own variable."""
        return self.spec.project or os.environ.get(variable) or self.name


def to_scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(name such as `train/loss`, value) for each number of the line that belongs to a curve."""
    prefix = SCALAR_PREFIXES.get(line["type"])
    if prefix is None:
        return
    for name, value in line.items():
        if name in ("step", "time") or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        yield f"{prefix}/{name}", float(value)
