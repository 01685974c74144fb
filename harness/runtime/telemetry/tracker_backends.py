"""What each tracker does with a line. Everything here may raise and take its time: its caller sees to that.

DeepSpeed's own monitor is not used: it knows the loss and the rate alone, counts in samples, and none of evaluations.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.facts.metrics_schema import LINES
from harness.spec.sections.telemetry_spec import TelemetrySpec, Tracker

_SCALAR_PREFIXES = {"step": "train", "eval": "eval", "save": "save"}
"""Lines whose numbers become curves, and what these are called."""


class TrackerBackend(Protocol):
    """An open tracker."""

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""

    def close(self) -> None:
        """The last one was taken."""


@dataclass(frozen=True, slots=True)
class TrackerTarget:
    """Where to, and under which names."""

    spec: TelemetrySpec
    folder: Path
    run_id: str
    name: str

    @property
    def project(self) -> str:
        """Of `wandb`, and the experiment of `mlflow`."""
        return self.spec.project or self.name


def to_scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(name such as `train/loss`, value) of the curves that a line is part of."""
    prefix = _SCALAR_PREFIXES.get(line["type"])
    if prefix is None:
        return
    for name, value in line.items():
        if name in ("step", "time") or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        yield f"{prefix}/{name}", float(value)


class CsvBackend:
    """A file for each type of line with curves; the columns are those of the schema, in its order."""

    def __init__(self, target: TrackerTarget) -> None:
        self._folder = target.folder / "csv"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, Any] = {}

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        kind = line["type"]
        if kind not in _SCALAR_PREFIXES:
            return
        columns = ["time", *(f.name for f in LINES[kind].fields if f.kind in ("count", "number", "text", "flag"))]
        if kind not in self._files:
            path = self._folder / f"{kind}.csv"
            fresh = not path.exists() or path.stat().st_size == 0
            self._files[kind] = path.open("a", newline="", encoding="utf-8")
            if fresh:
                csv.writer(self._files[kind]).writerow(columns)
        csv.writer(self._files[kind]).writerow([line.get(name, "") for name in columns])
        self._files[kind].flush()

    def close(self) -> None:
        """The last one was taken."""
        for file in self._files.values():
            file.close()


class TensorBoardBackend:
    """Event files; the run's facts and what went wrong as texts."""

    def __init__(self, target: TrackerTarget) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(target.folder / "tensorboard"), flush_secs=10)

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        step = int(line.get("step", line.get("start_step", 0)))
        for name, value in to_scalars(line):
            self._writer.add_scalar(name, value, step, walltime=line["time"])
        if line["type"] not in _SCALAR_PREFIXES and line["type"] != "ranks":
            rows = "\n".join(f"    {name}: {value}" for name, value in line.items())
            self._writer.add_text(line["type"], rows, step, walltime=line["time"])

    def close(self) -> None:
        """The last one was taken."""
        self._writer.close()


class WandbBackend:
    """A run of Weights & Biases. Attempts after a restart go on with the same one."""

    def __init__(self, target: TrackerTarget) -> None:
        import wandb

        target.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=target.project,
            entity=target.spec.wandb_entity,
            name=target.run_id,
            id=target.run_id.replace("/", "-"),
            resume="allow",
            dir=str(target.folder),
            mode=target.spec.wandb_mode,
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        if line["type"] == "run":
            self._run.config.update({k: v for k, v in line.items() if k != "type"}, allow_val_change=True)
        elif line["type"] == "straggler":
            self._run.alert(
                title=f"straggler {line['state']}", text=f"ranks {line['ranks']} on {line['host']}: {line['evidence']}"
            )
        values = dict(to_scalars(line))
        if values:
            self._run.log(values, step=int(line["step"]))

    def close(self) -> None:
        """The last one was taken."""
        self._run.finish()


class MlflowBackend:
    """A run of MLflow, through its client, which keeps no state of the process."""

    def __init__(self, target: TrackerTarget) -> None:
        uri = target.spec.mlflow_tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            place = target.folder / "mlflow"
            place.mkdir(parents=True, exist_ok=True)
            uri = f"file://{place.absolute()}"
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than the small package
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._client, self._metric = MlflowClient(tracking_uri=uri), Metric
        found = self._client.get_experiment_by_name(target.project)
        experiment = found.experiment_id if found else self._client.create_experiment(target.project)
        self._run: str = self._client.create_run(experiment, run_name=target.run_id).info.run_id

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        if line["type"] == "run":
            for name, value in line.items():
                self._client.log_param(self._run, name, str(value)[:500])
        elif line["type"] == "straggler":
            self._client.set_tag(self._run, f"straggler {line['step']}", f"{line['ranks']}: {line['evidence']}"[:500])
        stamp = int(line["time"] * 1000)
        batch = [self._metric(name, value, stamp, int(line["step"])) for name, value in to_scalars(line)]
        if batch:
            self._client.log_batch(self._run, metrics=batch)
        if line["type"] == "end":
            self._client.set_terminated(self._run, "FINISHED" if line["state"] == "completed" else "KILLED")

    def close(self) -> None:
        """The last one was taken."""
        if self._client.get_run(self._run).info.status == "RUNNING":
            self._client.set_terminated(self._run, "FAILED")


BACKENDS: Mapping[Tracker, Callable[[TrackerTarget], TrackerBackend]] = {
    "csv": CsvBackend,
    "tensorboard": TensorBoardBackend,
    "wandb": WandbBackend,
    "mlflow": MlflowBackend,
}
