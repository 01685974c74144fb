# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases, through its own library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.runtime.telemetry.trackers.tracker_backend import TrackerTarget, to_scalars


class WandbBackend:
    """A run of Weights & Biases. Attempts after a restart resume the same run."""

    def __init__(self, target: TrackerTarget) -> None:
        import wandb

        target.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=target.project("WANDB_PROJECT"),
            entity=target.spec.wandb_entity,
            name=target.run_id,
            id=target.run_id.replace("/", "-"),
            resume="allow",
            dir=str(target.folder),
            mode=target.spec.wandb_mode,  # None: that of WANDB_MODE
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        if line["type"] == "run":
            self._run.config.update({k: v for k, v in line.items() if k != "type"}, allow_val_change=True)
        elif line["type"] == "straggler":
            self._run.alert(
                title=f"straggler {line['state']}", text=f"ranks {line['ranks']} on {line['host']}: {line['evidence']}"
            )
        scalars = dict(to_scalars(line))
        if scalars:
            self._run.log(scalars, step=int(line["step"]))

    def close(self) -> None:
        """Flush and close."""
        self._run.finish()
