# SPDX-License-Identifier: Apache-2.0
"""Event files of TensorBoard, written by torch's `SummaryWriter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.runtime.telemetry.trackers.tracker_backend import SCALAR_PREFIXES, TrackerTarget, to_scalars


class TensorBoardBackend:
    """Scalars as curves; the header of the run and its failures as texts."""

    def __init__(self, target: TrackerTarget) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(target.folder / "tensorboard"), flush_secs=10)

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        step = int(line.get("step", line.get("start_step", 0)))
        for name, value in to_scalars(line):
            self._writer.add_scalar(name, value, step, walltime=line["time"])
        if line["type"] not in SCALAR_PREFIXES and line["type"] != "ranks":
            rows = "\n".join(f"    {name}: {value}" for name, value in line.items())
            self._writer.add_text(line["type"], rows, step, walltime=line["time"])

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
