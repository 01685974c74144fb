# SPDX-License-Identifier: Apache-2.0
"""Trackers (csv, TensorBoard, wandb, mlflow), their interface, and the scalars of a line of metrics.jsonl.

DeepSpeed's own monitor is not used: it logs the loss and the learning rate alone, counts in samples, and has no
evaluations.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from harness.facts.metrics_schema import LINES
from harness.side_file import SideFile
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
    """The training that a tracker logs: its folder and its names. Runs that resume it go on with the same."""

    spec: TelemetrySpec
    folder: Path
    run_id: str
    """The directory's name of the first run of the training."""
    name: str

    def own_folder(self, tracker: str) -> Path:
        """For files that have one training alone; `telemetry.tracker_dir` may have several."""
        return self.folder / tracker / (self.run_id if self.spec.tracker_dir else "")

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


class CsvBackend:
    """One file a type of line. The columns are those of the schema, in its order."""

    def __init__(self, target: TrackerTarget) -> None:
        self._folder = target.own_folder("csv")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, SideFile] = {}
        self._num_missing = 0

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        kind = line["type"]
        if kind not in SCALAR_PREFIXES:
            return
        columns = ["time", *(f.name for f in LINES[kind].fields if f.kind in ("count", "number", "text", "flag"))]
        rows = [[line.get(name, "") for name in columns]]
        path = self._folder / f"{kind}.csv"
        if kind not in self._files:
            self._files[kind] = SideFile(str(path), lambda _: b"")  # a table has no line about a gap
        if not path.exists() or path.stat().st_size == 0:
            rows.insert(0, columns)
        self._num_missing += not self._files[kind].append(_to_csv(rows))

    def close(self) -> None:
        """Close the files. Raises OSError where rows are missing."""
        for file in self._files.values():
            file.close()
        if self._num_missing:
            raise OSError(f"{self._num_missing:,} rows are missing in {self._folder}, which the disk did not take")


def _to_csv(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


_MLFLOW_TAG = "harness.training"


class MlflowBackend:
    """A run of MLflow, found again by a tag. The client keeps no state of the process."""

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
        known = self._client.search_runs([experiment_id], f"tags.`{_MLFLOW_TAG}` = '{target.run_id}'", max_results=1)
        if known:
            self._run: str = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {_MLFLOW_TAG: target.run_id}
            self._run = self._client.create_run(experiment_id, run_name=target.run_id, tags=tags).info.run_id
        self._params = dict(known[0].data.params) if known else {}
        self._last_steps = {prefix: self._last_step(prefix) for prefix in SCALAR_PREFIXES.values()} if known else {}

    def _last_step(self, prefix: str) -> int:
        """The last step that an earlier start logged: MLflow would keep both values of a step that is trained again."""
        names = [name for name in self._client.get_run(self._run).data.metrics if name.startswith(f"{prefix}/")]
        return max((m.step for name in names[:1] for m in self._client.get_metric_history(self._run, name)), default=-1)

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        if line["type"] == "run":
            texts = {name: str(value)[:500] for name, value in line.items()}
            for name, text in texts.items():
                if name not in self._params:
                    self._client.log_param(self._run, name, text)
                elif self._params[name] != text:  # of an earlier start: a parameter of MLflow never changes
                    self._client.set_tag(self._run, f"{name} from step {line['start_step']}", text)
        elif line["type"] == "straggler":
            self._client.set_tag(self._run, f"straggler {line['step']}", f"{line['ranks']}: {line['evidence']}"[:500])
        timestamp = int(line["time"] * 1000)
        metrics = [self._metric(name, value, timestamp, int(line["step"])) for name, value in to_scalars(line)]
        if metrics and int(line["step"]) > self._last_steps.get(SCALAR_PREFIXES[line["type"]], -1):
            self._client.log_batch(self._run, metrics=metrics)
        if line["type"] == "end":
            self._client.set_terminated(self._run, "FINISHED" if line["state"] == "completed" else "KILLED")

    def close(self) -> None:
        """Flush and close."""
        if self._client.get_run(self._run).info.status == "RUNNING":
            self._client.set_terminated(self._run, "FAILED")


class TensorBoardBackend:
    """Scalars as curves; the header of the run and its failures as texts."""

    def __init__(self, target: TrackerTarget) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = partial(SummaryWriter, str(target.own_folder("tensorboard")), flush_secs=10)
        self._writer: Any = None

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of metrics.jsonl."""
        step = int(line.get("step", line.get("start_step", 0)))
        if self._writer is None:  # what an earlier start wrote of later steps counts no more
            self._writer = self._open(purge_step=step + 1 if line["type"] == "run" and step else None)
        for name, value in to_scalars(line):
            self._writer.add_scalar(name, value, step, walltime=line["time"])
        if line["type"] not in SCALAR_PREFIXES and line["type"] != "ranks":
            rows = "\n".join(f"    {name}: {value}" for name, value in line.items())
            self._writer.add_text(line["type"], rows, step, walltime=line["time"])

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()


class WandbBackend:
    """A run of Weights & Biases. Restarts and resumes go on with it: W&B drops the steps that it has."""

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
