# SPDX-License-Identifier: Apache-2.0
"""MLflow, through its client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from harness.runtime.telemetry.trackers.tracker_backend import TrackerTarget, to_scalars


class MlflowBackend:
    """A run of MLflow. The client keeps no state of the process."""

    def __init__(self, target: TrackerTarget) -> None:
        uri = target.spec.mlflow_tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            folder = target.folder / "mlflow"
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"file://{folder.absolute()}"
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than the small package
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._client, self._metric = MlflowClient(tracking_uri=uri), Metric
        project = target.project("MLFLOW_EXPERIMENT_NAME")
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project)
        self._run: str = self._client.create_run(experiment_id, run_name=target.run_id).info.run_id

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        if line["type"] == "run":
            for name, value in line.items():
                self._client.log_param(self._run, name, str(value)[:500])
        elif line["type"] == "straggler":
            self._client.set_tag(self._run, f"straggler {line['step']}", f"{line['ranks']}: {line['evidence']}"[:500])
        timestamp = int(line["time"] * 1000)
        metrics = [self._metric(name, value, timestamp, int(line["step"])) for name, value in to_scalars(line)]
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)
        if line["type"] == "end":
            self._client.set_terminated(self._run, "FINISHED" if line["state"] == "completed" else "KILLED")

    def close(self) -> None:
        """Flush and close."""
        if self._client.get_run(self._run).info.status == "RUNNING":
            self._client.set_terminated(self._run, "FAILED")
