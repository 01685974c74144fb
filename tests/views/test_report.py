"""The HTML report of run directories in every state. Needs nothing; a second."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.plan.plan import make_plan
from harness.plan.run import Run, resolve
from harness.render import render
from harness.spec.model import RunSpec
from harness.units import format_bytes
from harness.views.report import page, write
from harness.views.report_data import read_record

MODEL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 259}
VOID = {"meta", "br", "line", "polyline", "rect", "path"}
MakeRun = Callable[..., Path]


class Document(HTMLParser):
    """Checks that tags close, and collects text and what would be loaded or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.loads: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "action") or name.startswith("on")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def resolved() -> Run:
    raw = {
        "model": {"config": MODEL},
        "train": {"per_device_train_batch_size": 2, "max_steps": 30},
        "zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "launch": {"num_gpus": 2},
    }
    return resolve(RunSpec.model_validate(raw), name="tiny")


def metrics(steps: int = 30) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [{"type": "run", "world": 2, "steps": 30, "parameters": 1000, "unigram_entropy": 3.1}]
    for step in range(1, steps + 1):
        line = {
            "type": "step",
            "step": step,
            "loss": 5 / step,
            "learning_rate": 1e-3,
            "grad_norm": 1.0,
            "tokens": 512 * step,
        }
        times = {"seconds": 0.5, "seconds_forward": 0.1, "seconds_backward": 0.3, "seconds_optimizer": 0.05}
        lines.append({**line, **times, "tokens_per_second": 1024.0, "memory_host_bytes": 500 * 2**20, "skipped": 0})
    return lines


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        lines: list[dict[str, Any]] | None = None,
        states: tuple[str, ...] = ("completed",),
        tail: str = "",
        **files: str,
    ) -> Path:
        run = resolved()
        folder = tmp_path / "tiny-20260101-000000"
        (folder / "status").mkdir(parents=True)
        texts = {
            "spec.yaml": "name: tiny\n",
            "spec.resolved.json": json.dumps(run.to_json()),
            "ds_config.json": render(run).text,
        }
        texts["plan.json"] = json.dumps(make_plan(run, gpu="cpu").to_json())
        if lines is not None:
            texts["metrics.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines) + tail
        for name, text in {**texts, **files}.items():
            (folder / name).write_text(text, encoding="utf-8")
        for rank, state in enumerate(states):
            body = {"rank": rank, "host": "h", "pid": 1, "state": state, "step": 3}
            body |= {"error": "RuntimeError: <boom> & more"} if state == "failed" else {}
            (folder / "status" / f"rank-{rank:05d}.json").write_text(json.dumps(body), encoding="utf-8")
        return folder

    return make


def report(folder: Path) -> Document:
    document = Document(write(folder).read_text(encoding="utf-8"))
    assert document.open == []
    assert document.loads == []
    assert "script" not in document.tags
    return document


def test_a_complete_run(make_run: MakeRun) -> None:
    lines = [*metrics(), {"type": "eval", "step": 30, "loss": 2.5, "perplexity": math.exp(2.5), "unigram_entropy": 3.1}]
    lines += [
        {"type": "save", "step": 30, "path": "checkpoints/step-00000030", "seconds": 1.5},
        {"type": "end", "step": 30, "state": "completed"},
    ]
    document = report(make_run(lines, ("completed", "completed"), **{"sample.txt": "The <import> statement"}))
    for expected in ("completed", "2.5000", "3.1000", "0.600 above the loss", "1,024", "The <import> statement"):
        assert expected in document.text
    for expected in ("checkpoints/step-00000030", "zero_optimization.stage", "name: tiny"):
        assert expected in document.text
    assert "500.00 MiB" in document.text
    assert document.tags.count("svg") == 6
    assert document.tags.count("circle") == 1


def test_the_planned_bar_stands_beside_the_measured_one(make_run: MakeRun) -> None:
    text = report(make_run(metrics())).text
    plan = make_plan(resolved(), gpu="cpu")
    assert plan.memory is not None
    assert format_bytes(plan.memory.host_peak / 2) in text
    assert "measured on rank 0" in text


def test_a_plan_of_another_kind_is_made_again(make_run: MakeRun) -> None:
    text = report(make_run(metrics(), **{"plan.json": '{"argv": []}'})).text
    assert "On the CPU accelerator" in text
    assert "Every row of the plan" in text


def test_a_failed_run_names_rank_and_error(make_run: MakeRun) -> None:
    document = report(make_run(metrics(3), ("failed", "running")))
    assert "failed" in document.text
    assert "rank 0 on h: RuntimeError: <boom> & more" in document.text


def test_a_stopped_run_says_why(make_run: MakeRun) -> None:
    lines = [
        *metrics(3),
        {"type": "stop", "step": 3, "reason": "SIGTERM"},
        {"type": "end", "step": 3, "state": "stopped"},
    ]
    assert "stopped after step 3: SIGTERM" in report(make_run(lines, ("stopped", "stopped"))).text


def test_a_run_that_was_started_again_draws_each_step_once(make_run: MakeRun) -> None:
    lost = [{"type": "step", "step": step, "loss": 5.0} for step in (1, 2, 3)]
    restart = {"type": "restart", "attempt": 2, "cause": "killed by SIGKILL", "lost_step": 3, "step": 1}
    again = [{"type": "step", "step": step, "loss": 4.0} for step in (2, 3, 4)]
    record = read_record(make_run([*lost, restart, *again]))
    assert record.points("step", "loss") == [(1, 5.0), (2, 4.0), (3, 4.0), (4, 4.0)]
    assert "started again from step 1 after step 3: killed by SIGKILL" in page(record)


def test_a_torn_last_line_is_said_and_costs_nothing_else(make_run: MakeRun) -> None:
    text = report(make_run(metrics(3), ("running",), tail='{"type": "step", "st')).text
    assert "1 line of metrics.jsonl could not be read" in text
    assert "running or killed" in text


@pytest.mark.parametrize("lines", [None, [], [{"type": "run"}], [{"type": "end"}], [{"nothing": 1}]])
def test_runs_without_steps(make_run: MakeRun, lines: list[dict[str, Any]] | None) -> None:
    assert "No step was recorded" in report(make_run(lines, ())).text


def test_an_empty_folder_and_one_with_junk(tmp_path: Path) -> None:
    assert "not started" in report(tmp_path).text
    for name in ("spec.resolved.json", "plan.json", "findings.json", "metrics.jsonl", "ds_config.json"):
        (tmp_path / name).write_bytes(b"\xff\x00[1, 2")
    assert "could not be read" in report(tmp_path).text


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "high", True, [], 1e308])
def test_values_that_cannot_be_drawn(make_run: MakeRun, value: object) -> None:
    lines = metrics(3)
    lines[2]["loss"] = value
    lines[3]["grad_norm"] = value
    assert "nan" not in report(make_run(lines)).text


def test_one_step_is_a_dot(make_run: MakeRun) -> None:
    one = report(make_run(metrics(1)))
    assert "circle" in one.tags


def test_a_long_run_stays_a_small_file(make_run: MakeRun) -> None:
    folder = make_run(metrics(20_000))
    assert write(folder).stat().st_size < 200_000


def test_everything_a_user_can_write_is_escaped(make_run: MakeRun) -> None:
    evil = '"><img src=x onerror=alert(1)>'
    lines = [*metrics(2), {"type": "stop", "step": evil, "reason": evil}, {"type": "save", "step": 1, "path": evil}]
    plan = {
        "rows": [{"tier": evil, "what": evil, "formula": evil, "source": evil}],
        "alternatives": [{"title": evil}],
        "device": "cpu",
    }
    findings = {"findings": [{"gate": evil, "severity": evil, "message": f"`{evil}`"}]}
    files = {
        "plan.json": json.dumps(plan),
        "findings.json": json.dumps(findings),
        "sample.txt": evil,
        "spec.yaml": evil,
    }
    document = report(make_run(lines, **files, **{"ds_config.json": evil}))
    assert "img" not in document.tags
    assert document.text.count(evil) >= 8


def test_another_place_for_the_file(make_run: MakeRun, tmp_path: Path) -> None:
    target = write(make_run(metrics(2)), tmp_path / "r.html")
    assert target == tmp_path / "r.html"
    assert not (tmp_path / "tiny-20260101-000000" / "report.html").exists()
