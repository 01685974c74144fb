# SPDX-License-Identifier: Apache-2.0
"""The HTML report of run directories in every state. Needs nothing; a second."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.plan.planner import make_plan
from harness.run.objective_facts import facts_of
from harness.run_records.run_record import read_run_record
from harness.units import format_bytes
from harness.verdicts import Verdict
from harness.views.report import render_report, write_report
from harness.views.report.page import MAX_BYTES
from tests.support.sample_run import RESET, eventful, lost_a_rank, tiny, write_run

VOID = {"meta", "br", "input", "line", "polyline", "rect", "path"}
MakeRun = Callable[..., Path]


class Document(HTMLParser):
    """Checks that tags close, and collects text and what would be loaded or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text, self.whole = "", text
        self.loads: list[str] = []
        self.charts: list[dict[str, Any]] = json.loads(text.split('id="charts">')[1].split("</script>", maxsplit=1)[0])
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
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def metrics(steps: int = 30) -> list[dict[str, Any]]:
    """Lines of format 1, which had no time."""
    lines: list[dict[str, Any]] = [{"type": "run", "world": 2, "steps": 30, "parameters": 1000, "unigram_entropy": 3.1}]
    for number in range(1, steps + 1):
        line = {"type": "step", "step": number, "loss": 5 / number, "learning_rate": 1e-3, "grad_norm": 1.0}
        times = {"seconds": 0.5, "seconds_forward": 0.1, "seconds_backward": 0.3, "seconds_optimizer": 0.05}
        memory = {"memory_host_bytes": 500 * 2**20}
        lines.append({**line, **times, **memory, "tokens": 512 * number, "tokens_per_second": 1024.0, "skipped": 0})
    return lines


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        lines: list[dict[str, Any]] | None = None,
        states: tuple[str, ...] = ("completed",),
        tail: str = "",
        **files: str,
    ) -> Path:
        return write_run(tmp_path / "tiny-20260101-000000", tiny(), lines, states, tail, files=files)

    return make


def report(folder: Path) -> Document:
    document = Document(write_report(folder).read_text(encoding="utf-8"))
    assert document.open == []
    assert document.loads == []
    assert document.tags.count("script") == 3  # charts, axes, what draws them
    return document


def test_samples_of_evaluations_the_newest_first(tmp_path: Path) -> None:
    run = tiny({"eval": {"samples": ["Once <upon>"], "eval_steps": 10}})
    lines = [{"type": "eval", "step": n, "loss": 2.5, "samples": [f"a <b> of {n}"]} for n in range(10, 500, 10)]
    lines += [{"type": "eval", "step": 500, "loss": 2.5, "samples": 7}, {"type": "eval", "samples": ["no step"]}]
    text = report(write_run(tmp_path / "run", run, [*metrics(), *lines])).text
    assert "after: Once <upon>" in text
    assert text.index("a <b> of 490") < text.index("a <b> of 480") < text.index("a <b> of 200")
    assert "a <b> of 190" not in text  # thirty evaluations
    assert "no step" not in text


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
    assert document.tags.count("figure") == 6
    drawn = {chart["title"]: chart for chart in document.charts}
    assert drawn["Loss, nats per token"]["series"][1]["ys"] == [2.5]
    assert drawn["Time of a step by part"]["series"][0]["name"] == "forward"


_MEASURED = {
    "dpo": {"rewards_chosen": 0.4, "rewards_margin": 0.6, "rewards_accuracy": 0.75, "logps_chosen": -9.0},
    "kto": {"kl": 0.1, "desirable": 0.5, "rewards_desirable": 0.2, "rewards_undesirable": None},
    "reward": {"rewards_margin": 0.6, "rewards_accuracy": 0.75},
    "classification": {"accuracy": 0.75, "absolute_error": None},
}
_CHARTS = {
    "dpo": ["Rewards", "Rewards accuracy", "Logps"],
    "kto": ["Kl", "Desirable", "Rewards"],
    "reward": ["Rewards", "Rewards accuracy"],
    "classification": ["Accuracy"],
}


@pytest.mark.parametrize("objective", _MEASURED)
def test_what_an_objective_measures_is_drawn_and_no_perplexity(tmp_path: Path, objective: str) -> None:
    lines: list[dict[str, Any]] = [line | {"metrics": _MEASURED[objective]} for line in metrics()[1:]]
    figures = {"loss": 0.5, "perplexity": 1.6487, "metrics": _MEASURED[objective]}  # as runs of 0.1 wrote it
    lines.append({"type": "eval", "step": 30, "tokens": 8, "seconds": 1.0} | figures)
    folder = write_run(tmp_path / "run", tiny({"objective": objective}), lines)
    document = report(folder)
    titles = [chart["title"] for chart in document.charts]
    unit = facts_of(objective).unit
    assert titles[0] == f"Loss, mean of the {unit}s"
    assert titles[1 : 1 + len(_CHARTS[objective])] == _CHARTS[objective]
    held_out = document.charts[1]["series"][1]
    assert held_out["name"].endswith(", held-out")
    assert held_out["ys"] == [next(iter(_MEASURED[objective].values()))]
    for text in ("perplexity", "nats per token", "1.649"):
        assert text not in document.text
    assert ("75.0%" in document.text) == (objective != "kto")
    assert "nats per token" not in Document(render_report([read_run_record(folder)] * 2)).text


def test_the_planned_bar_stands_beside_the_measured_one(make_run: MakeRun) -> None:
    text = report(make_run(metrics())).text
    plan = make_plan(tiny(), gpu="cpu")
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
    assert "rank 0 on node0: RuntimeError: <boom> & more" in document.text


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            {"records_left_out": {"bad-json": 2, "empty": 1}},
            "records left out of the data: 2 bad-json, 1 empty; data/skipped.jsonl",
        ),
        ({"records_left_out": {}, "records_cut": 7}, "records cut at data.max_length: 7"),
        ({"records_left_out": {}, "records_cut": 0}, "No failures and no findings"),
    ],
)
def test_records_that_were_not_trained_on_are_named(make_run: MakeRun, counts: dict[str, Any], words: str) -> None:
    lines = metrics(3)
    text = report(make_run([{**lines[0], **counts}, *lines[1:]])).text
    assert words in text
    assert ("No failures" in text) == ("No failures" in words)


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
    document = report(make_run([*lost, restart, *again]))
    assert document.charts[0]["series"][0]["ys"] == [5, 4, 4, 4]
    assert document.charts[0]["marks"] == [{"x": 1.0, "kind": "restart"}]
    assert "failed at step 3: killed by SIGKILL; restarted from step 1" in document.text


def test_a_torn_last_line_is_said_and_costs_nothing_else(make_run: MakeRun) -> None:
    text = report(make_run(metrics(3), ("running",), tail='{"type": "step", "st')).text
    assert "1 line of metrics.jsonl could not be read" in text
    assert "broken off" in text


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


def test_a_long_run_stays_a_small_file_and_is_quick(make_run: MakeRun) -> None:
    folder = make_run(metrics(100_000))
    began = time.process_time()
    assert write_report(folder).stat().st_size < 600_000
    assert time.process_time() - began < 20


def test_many_long_runs_stay_below_two_megabytes(make_run: MakeRun) -> None:
    record = read_run_record(make_run(metrics(700), **{"spec.yaml": "#" * 3_000_000, "sample.txt": "x" * 3_000_000}))
    assert len(render_report([record])) < MAX_BYTES
    assert len(render_report([record] * 26)) < MAX_BYTES


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
    folder = make_run(lines, ("failed",), **files, **{"ds_config.json": evil})
    (folder / "status" / "rank-00001.json").write_text(json.dumps({"rank": evil, "host": evil, "error": evil}))
    folder = folder.rename(folder.with_name("<script>alert(1)<b>"))
    document = report(folder)
    assert "img" not in document.tags
    assert "b" not in document.tags[: document.tags.index("h2")]
    assert "</script><script>" not in document.whole.split("<main>")[1].split('id="charts"')[0]
    assert document.text.count(evil) >= 8


def test_another_place_for_the_file(make_run: MakeRun, tmp_path: Path) -> None:
    target = write_report(make_run(metrics(2)), tmp_path / "r.html")
    assert target == tmp_path / "r.html"
    assert not (tmp_path / "tiny-20260101-000000" / "report.html").exists()


def test_an_eventful_run_shows_all_of_it(tmp_path: Path) -> None:
    document = report(eventful(tmp_path / "large-20260921-120000"))
    for expected in (
        "attempts",
        "50 steps repeated",
        "killed by SIGKILL",
        "rank 5 on node0, 30% slower than its peers",
    ):
        assert expected in document.text
    for expected in (
        "ignored by the spec: OF001",
        "MFU",
        "38.0%",
        "The ranks in figures",
        "GPU memory per rank, planned",
    ):
        assert expected in document.text
    marks = document.charts[0]["marks"]
    assert [mark["x"] for mark in marks if mark["kind"] == "restart"] == [100]
    assert document.whole.count('class="tick save"') == 7
    assert document.whole.count('class="span') == 2
    heat = document.whole.split('class="heat"')[1].split("</table>")[0]
    slow = [row for row in heat.split("<tr>") if row.startswith('<th scope="row">rank 5')]
    assert slow[0].count('class="h5"') >= 7  # 30% slower, in half of the columns
    assert ">3" in slow[0]


def test_two_runs_are_compared(tmp_path: Path) -> None:
    one = eventful(tmp_path / "a-20260921-120000", 60)
    two = eventful(tmp_path / "b-20260922-120000", 60, changes={"optimizer": {"learning_rate": 3e-5}})
    document = Document(write_report([one, two], tmp_path / "x.html").read_text())
    assert document.open == []
    assert "optimizer.learning_rate" in document.text
    assert "3e-05" in document.text
    loss = document.charts[0]
    assert [series["name"] for series in loss["series"]] == ["A a-20260921-120000", "B b-20260922-120000"]
    assert len({series["dash"] for series in loss["series"]}) == 2
    assert len({chart["id"] for chart in document.charts}) == len(document.charts)


def test_the_policy_lets_nothing_be_loaded_and_only_our_script_run(make_run: MakeRun) -> None:
    head = report(make_run(metrics(2))).whole.split("</head>")[0]
    assert "default-src 'none'" in head
    assert "script-src 'sha256-" in head
    assert "connect-src 'none'" in head


def failures(folder: Path) -> str:
    text = render_report([read_run_record(folder)])
    return text[text.index("Problems and notes") :].partition("</ul>")[0]


def test_the_rank_that_was_killed_is_named_and_not_the_one_that_outlived_it(tmp_path: Path) -> None:
    told = failures(lost_a_rank(tmp_path / "r"))
    assert "<b>failed</b> on rank 1 (node1) at step 24: killed by SIGKILL<" in told
    assert told.count("<b>failed") == 1
    assert f"after that, rank 0 on node0 failed: <code>{RESET}</code>" in told


def test_without_a_verdict_each_rank_that_said_so_has_failed(tmp_path: Path) -> None:
    assert f"<b>failed:</b> rank 0 on node0: <code>{RESET}</code>" in failures(lost_a_rank(tmp_path / "r", None))


def test_a_rank_that_named_its_own_error_is_named_once(tmp_path: Path) -> None:
    told = failures(lost_a_rank(tmp_path / "r", Verdict("failed", 1, RESET, 0, "node0", 24, crashed=True)))
    assert f"<b>failed</b> on rank 0 (node0) at step 24: {RESET}" in told
    assert told.count(RESET) == 1


def test_a_verdict_is_text_like_any_other(tmp_path: Path) -> None:
    odd = Verdict("failed", 1, "<script>", 1, "<b>", notes=("<i>",))
    text = render_report([read_run_record(lost_a_rank(tmp_path / "r", odd))])
    Document(text)
    assert "&lt;script&gt;" in text
    assert "rank 1 (&lt;b&gt;) at step" in text


def test_a_run_that_was_stopped_says_by_what(tmp_path: Path) -> None:
    stopped = Verdict("stopped", 143, "1 of 2 ranks were killed", step=24, signal="SIGTERM")
    told = failures(lost_a_rank(tmp_path / "r", stopped))
    assert "stopped by SIGTERM at step 24: 1 of 2 ranks were killed<" in told
    assert "<b>failed" not in told
