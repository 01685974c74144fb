# SPDX-License-Identifier: Apache-2.0
"""Trackers get every number, and none of them can stop or slow a run. No ranks; libraries where installed: 3 to 15 s."""

from __future__ import annotations

import csv
import errno
import json
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import side_file
from harness.runtime.metrics import MetricsWriter
from harness.runtime.telemetry.trackers import tracker_threads
from harness.runtime.telemetry.trackers.tracker_backend import CsvBackend, TrackerTarget
from harness.runtime.telemetry.trackers.tracker_threads import BACKENDS, Trackers, TrackerThread
from harness.spec.sections.telemetry_spec import TelemetrySpec
from tests.support.metrics_lines import validate_line

LOSSES = [3.0, 2.5, float("nan"), 2.0]


def train(run_dir: Path, **spec: Any) -> tuple[Trackers, list[dict[str, Any]], list[str], float]:
    """A run of four steps: its trackers, its lines, its messages, and the seconds that the steps took."""
    run_dir.mkdir(parents=True, exist_ok=True)
    messages: list[str] = []
    metrics = MetricsWriter(run_dir / "metrics.jsonl")
    run_trackers = Trackers(TelemetrySpec.model_validate(spec), run_dir, "tiny", metrics, messages.append)
    run_trackers.start()
    start = time.perf_counter()
    metrics.write("run", format_version=2, name="tiny", world=2, start_step=0)
    for step, loss in enumerate(LOSSES, 1):
        metrics.write("step", step=step, loss=loss, tokens_per_second=100.0 * step, mfu=0.4)
        run_trackers.report_failures(step)
    metrics.write("eval", step=4, loss=2.2, perplexity=9.0, tokens=50, own={"correct": 0.5})
    metrics.write("straggler", step=4, state="named", ranks=[1], host="b", slower=0.3, cause="data", evidence="waits")
    metrics.write("end", step=4, state="completed")
    seconds = time.perf_counter() - start
    metrics.close()
    lines = [json.loads(text) for text in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return run_trackers, lines, messages, seconds


def failures(lines: list[dict[str, Any]]) -> dict[str, str]:
    return {line["tracker"]: line["error"] for line in lines if line["type"] == "tracker_failed"}


def test_csv(tmp_path: Path) -> None:
    _, lines, messages, _ = train(tmp_path / "run", trackers=["csv"])
    assert (failures(lines), messages) == ({}, [])
    rows = list(csv.DictReader((tmp_path / "run/trackers/csv/step.csv").open()))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["loss"] for row in rows] == ["3.0", "2.5", "", "2.0"]
    assert rows[0]["mfu"] == "0.4"
    (evaluation,) = csv.DictReader((tmp_path / "run/trackers/csv/eval.csv").open())
    assert evaluation["perplexity"] == "9.0"


def test_csv_of_a_second_attempt_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        train(tmp_path / "run", trackers=["csv"], tracker_dir=str(tmp_path / "here"))
    text = (tmp_path / "here/csv/run/step.csv").read_text().splitlines()
    assert len(text) == 9
    assert sum(line.startswith("time,") for line in text) == 1


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the trackers extra")
    _, lines, messages, _ = train(tmp_path / "run", trackers=["tensorboard"])
    assert (failures(lines), messages) == ({}, [])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run/trackers/tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 3.0), (2, 2.5), (4, 2.0)]
    assert [e.value for e in events.Scalars("eval/perplexity")] == [9.0]
    assert "straggler/text_summary" in events.Tags()["tensors"]


@pytest.mark.parametrize("way", ["the spec", "the environment"])
def test_wandb_offline(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the trackers extra")
    settings = {"wandb_mode": "offline", "project": "mine"} if way == "the spec" else {}
    monkeypatch.setenv("WANDB_MODE", "online" if settings else "offline")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    wandb.teardown()  # the variables are read once in a process
    _, lines, messages, _ = train(tmp_path / "run", trackers=["wandb"], **settings)
    assert (failures(lines), messages) == ({}, [])
    (record,) = (tmp_path / "run/trackers/wandb").glob("offline-run-*/run-*.wandb")
    deadline, stored = time.monotonic() + 20, wandb_records(record)
    while not any(r.HasField("exit") for r in stored) and time.monotonic() < deadline:
        time.sleep(0.1)  # W&B's own process writes the file
        stored = wandb_records(record)
    items = [(item.nested_key, item.key, item.value_json) for r in stored for item in r.history.item]
    values = [(key or ".".join(nested), value) for nested, key, value in items]
    assert [float(value) for name, value in values if name == "train/loss"] == [3.0, 2.5, 2.0], stored
    assert "eval/perplexity" in dict(values)
    assert any("format_version" in str(r.config) for r in stored)
    assert [r.run.project for r in stored if r.HasField("run")] == ["mine"]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the trackers extra")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _, lines, messages, _ = train(tmp_path / "run", trackers=["mlflow"])
    assert (failures(lines), messages) == ({}, [])
    folder = tmp_path / "run/trackers/mlflow"
    client = mlflow.MlflowClient(tracking_uri=f"file://{folder}")
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["world"] == "2"
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/loss")] == [
        (1, 3.0),
        (2, 2.5),
        (4, 2.0),
    ]


def test_starts_of_one_training_are_one_run_of_each_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at step 3 after a save at step 1, requeued twice in directories of their own."""
    for library in ("tensorboard", "mlflow", "wandb"):
        pytest.importorskip(library, reason="needs the trackers extra")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    spec = {"trackers": ["csv", "tensorboard", "mlflow", "wandb"], "wandb_mode": "offline"}
    for number, (start, steps) in enumerate([(0, (1, 2, 3)), (1, (2, 3, 4)), (4, (5,))]):
        folder = tmp_path / f"part-{number}"
        folder.mkdir()
        (folder / "launch.json").write_text(json.dumps({"training": "part-0"}))
        metrics = MetricsWriter(folder / "metrics.jsonl")
        opened = Trackers(TelemetrySpec.model_validate(spec), folder, "tiny", metrics, pytest.fail)
        opened.start()
        metrics.write("run", format_version=2, name="tiny", world=2 + number, start_step=start)
        for step in steps:
            metrics.write("step", step=step, loss=10.0 * number + step)
        for thread in opened.threads:
            thread.close(60.0)
        metrics.close()
    assert not (tmp_path / "part-1/trackers").exists()
    trackers = tmp_path / "part-0/trackers"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trackers / "tensorboard"))
    events.Reload()
    expected = [(1, 1.0), (2, 12.0), (3, 13.0), (4, 14.0), (5, 25.0)]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == expected
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"file://{trackers / 'mlflow'}")
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4, 5]
    assert (run.data.params["world"], run.data.tags["world from step 4"]) == ("2", "4")
    records = sorted(trackers.glob("wandb/offline-run-*/run-*.wandb"))
    assert [record.name for record in records] == ["run-part-0.wandb"] * 3
    logged = [[r.history.step.num for r in wandb_records(record) if r.HasField("history")] for record in records]
    assert logged == [[1, 2, 3], [2, 3, 4], [5]]
    assert len((trackers / "csv/step.csv").read_text().splitlines()) == 8


def wandb_records(file: Path) -> list[Any]:
    """The records of a file of offline W&B: protobuf messages in chunks of LevelDB's log, 7 bytes of header each."""
    from wandb.proto import wandb_internal_pb2

    data, at, body, records = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        block_end = at - at % 32768 + 32768
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if block_end - at < 7 or kind == 0:
            at = block_end
            continue
        body += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last chunk
            records.append(wandb_internal_pb2.Record.FromString(body))
            body = b""
    return records


class FailingBackend:
    """A tracker with a fault."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        if kind == "open":
            raise RuntimeError("no login\nand more")
        if kind == "exit":
            raise SystemExit(1)

    def log(self, line: Mapping[str, Any]) -> None:
        if self._kind == "log" and line["type"] == "step" and line["step"] == 2:
            raise OSError("no space")
        if self._kind == "hang":
            time.sleep(3600)

    def close(self) -> None:
        if self._kind == "close":
            raise ValueError


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("open", "RuntimeError: no login"),
        ("exit", "SystemExit: 1"),
        ("log", "OSError: no space"),
        ("close", "ValueError"),
        ("hang", "it was not done after 0 s"),
    ],
)
def test_a_tracker_that_fails_is_given_up(
    kind: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_threads, "BACKENDS", {**BACKENDS, "wandb": lambda _: FailingBackend(kind)})
    monkeypatch.setattr(TrackerThread.close, "__defaults__", (0.3,))
    run_trackers, lines, messages, seconds = train(tmp_path / "run", trackers=["wandb", "csv"])
    assert failures(lines) == {"wandb": error}
    assert len(messages) == 1
    assert "training continues" in messages[0]
    assert len([line for line in lines if line["type"] == "step"]) == len(LOSSES)
    assert seconds < 1
    assert (tmp_path / "run/trackers/csv/step.csv").exists()
    assert [tracker.error for tracker in run_trackers.threads] == [error, None]


def test_a_library_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    _, lines, messages, _ = train(tmp_path / "run", trackers=["mlflow"])
    assert list(failures(lines)) == ["mlflow"]
    assert "pip install" in messages[0]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, lines, messages, _ = train(tmp_path / "run", trackers=["csv"], tracker_dir=str(tmp_path / "file"))
    assert failures(lines)["csv"].startswith("NotADirectoryError")
    assert len(messages) == 1


def test_lines_do_not_pile_up_behind_a_slow_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_threads, "_MAX_QUEUED_LINES", 3)
    tracker = TrackerThread("slow", lambda: FailingBackend("hang"), _lines=__import__("queue").Queue(3))
    tracker.start()
    for step in range(10):
        tracker.enqueue({"type": "step", "step": step})
    assert tracker.error == "3 lines are waiting for it"


def test_rows_that_the_disk_does_not_take_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For metrics.jsonl and for the CSV tracker: half of a row, nothing, then room again."""
    metrics = MetricsWriter(tmp_path / "metrics.jsonl")
    table = CsvBackend(TrackerTarget(TelemetrySpec(), tmp_path, "run", "name"))
    write, answers = os.write, {2: 0.5, 3: 0.0, 4: 0.0}

    def write_part(descriptor: int, data: bytes) -> int:
        share = answers.get(row, 1.0)
        if not share:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: int(len(data) * share)])

    monkeypatch.setattr(side_file.os, "write", write_part)
    for row in range(1, 7):
        metrics.write("step", step=row, loss=1.0)
        table.log({"type": "step", "step": row, "loss": 1.0, "time": 0.0})
    metrics.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(x["type"], x.get("step"), x.get("rows")) for x in lines] == [
        ("step", 1, None),
        ("rows_dropped", None, 3),
        ("step", 5, None),
        ("step", 6, None),
    ]
    assert all(validate_line(x) == [] for x in lines if x["type"] == "rows_dropped")
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("warning: ")] == [
        "warning: metrics.jsonl cannot be written (no space left on device): training continues, and its rows are dropped",
        "warning: metrics.jsonl can be written again; 3 rows are missing in it",
    ]
    with pytest.raises(OSError, match="3 rows are missing in"):
        table.close()
    steps = [line["step"] for line in csv.DictReader((tmp_path / "csv" / "step.csv").open())]
    assert steps == ["1", "5", "6"]
