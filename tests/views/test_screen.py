# SPDX-License-Identifier: Apache-2.0
"""The screen of a running launch, mode by mode. Needs nothing; a second."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness.progress import RunProgress, format_figures, format_plain, format_to_width
from harness.verdicts import Verdict
from harness.views.screen import Screen, resolve_mode

RUN = {"type": "run", "steps": 200, "start_step": 0}
GPU = {"mfu": 0.381, "memory_gpu_peak_bytes": 33 * 2**30, "memory_host_bytes": 2**30}


def row(step: int, **more: Any) -> dict[str, Any]:
    return {"type": "step", "step": step, "loss": 3.01234, "tokens_per_second": 1450.0, **more}


def shown(screen: Screen, capsys: pytest.CaptureFixture[str], *rows: dict[str, Any]) -> list[str]:
    for one in rows:
        screen.on_metrics(one)
    screen.close()
    return capsys.readouterr().err.splitlines()


def test_a_plain_line_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(Screen("plain", 50), capsys, RUN, row(20, **GPU), row(21), row(40))
    assert lines[0].startswith("step 20/200  loss 3.012  1.45 k tokens/s  ")
    assert lines[0].endswith(" left  MFU 38.1%  GPU 33.00 GiB  saves at 50")
    assert len(lines) == 2  # a line every tenth of the run


def test_the_ranks_own_line_is_not_shown_twice(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen("plain")
    screen.on_metrics(RUN)
    screen.on_output("step 20/200  loss 3.012  1.45 k tokens/s  9.0 s left")
    screen.on_output("step 20: held-out loss 3.1")
    assert capsys.readouterr().err.splitlines() == ["step 20: held-out loss 3.1"]


def test_other_ranks_speak_where_they_are_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["mine", "[rank1]: another's", "[rank0]: mine, too", "a: [rank12]: far away", "[rank1]: [Gloo] Rank 1 is"]
    for tee, expected in ((False, [lines[0], lines[2]]), (True, lines[:4])):
        screen = Screen("plain", tee=tee)
        for line in lines:
            screen.on_output(line)
        assert capsys.readouterr().err.splitlines() == expected
        assert list(screen.last_lines) == lines[:4]  # whoever says why it failed has them all


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen("json", 50)
    screen.on_start(2, 1, Path("log"))
    screen.on_output("something")
    lines = [json.loads(line) for line in shown(screen, capsys, RUN, row(20, **GPU), {"type": "save", "step": 20})]
    assert [line["type"] for line in lines] == ["note", "output", "run", "step", "save"]
    assert (lines[3]["next_save"], lines[3]["total_steps"], lines[3]["mfu"]) == (50, 200, 0.381)
    assert lines[3]["seconds_left"] >= 0


def test_quiet_shows_trouble_alone(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen("quiet")
    screen.on_note("starting")
    screen.on_stop("SIGTERM", 8.0, waiting=True)
    assert len(shown(screen, capsys, RUN, row(20), row(200))) == 1


def test_a_bar_is_drawn_and_survives_a_restart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    screen = Screen("bar", 50)
    text = "\n".join(shown(screen, capsys, RUN, row(20, **GPU), {"type": "restart"}, RUN, row(1), row(200)))
    assert "20/200" in text
    assert "MFU 38.1%" in text
    assert "200/200" in text


@pytest.mark.parametrize(
    "bad", [{"step": "x"}, {"loss": None}, {"loss": "nan", "tokens_per_second": []}, {"step": None}]
)
def test_a_line_that_says_nothing_breaks_nothing(capsys: pytest.CaptureFixture[str], bad: dict[str, Any]) -> None:
    for mode in ("plain", "json", "bar"):
        assert shown(Screen(mode), capsys, {**RUN, "start_step": "?"}, {**row(200), **bad}) is not None  # type: ignore[arg-type]


def test_the_next_checkpoint() -> None:
    pace = RunProgress(200, 0, 50)
    assert [pace.next_save(step) for step in (1, 49, 50, 199, 200)] == [50, 50, 100, 200, None]
    assert RunProgress(120, 0, 50).next_save(110) == 120
    assert RunProgress(120, 0, 50, save_at_end=False).next_save(110) is None
    assert RunProgress(120, 0, None, save_at_end=False).next_save(1) is None


def test_time_left_counts_from_where_the_run_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = RunProgress(200, 100, start_time=1000.0)
    monkeypatch.setattr("time.monotonic", lambda: 1050.0)
    assert pace.seconds_left(150) == 50
    assert pace.seconds_left(100) is None


def test_a_narrow_terminal_keeps_what_is_wanted_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace, line = RunProgress(200, 0, 50), row(20, **GPU)
    assert format_to_width(line, pace, 12) == "loss 3.012"
    assert format_to_width(line, pace, 200) == "  ".join(format_figures(line, pace))
    assert format_plain(line, pace).startswith("step 20/200  loss 3.012")
    assert "loss none" in format_figures(row(1, loss=None), pace)


@pytest.mark.parametrize(
    ("asked", "ci", "expected"), [("auto", "", "plain"), ("bar", "1", "bar"), ("quiet", "", "quiet")]
)
def test_auto_is_a_bar_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, asked: str, ci: str, expected: str) -> None:
    monkeypatch.setenv("CI", ci)
    assert resolve_mode(asked) == expected


def test_auto_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    assert resolve_mode("auto") == "bar"
    monkeypatch.setenv("CI", "true")
    assert resolve_mode("auto") == "plain"


MINE = ["Traceback (most recent call last):", "  File x", "RuntimeError: Connection reset by peer"]
OTHERS = [f"[rank1]: {line}" for line in (MINE[0], "  File y", "ValueError: boom")]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict("failed", 137, "killed", 1), []),
        (Verdict("failed", 1, "boom", 1, crashed=True), OTHERS),
        (Verdict("failed", 1, "reset", 0, crashed=True), MINE),
        (Verdict("failed", 1, "nobody knows"), MINE),
        (Verdict("stopped", 143), MINE),
    ],
)
def test_of_all_tracebacks_the_one_that_tells_why_is_shown(
    verdict: Verdict, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen("plain")
    for line in ["before", *MINE, *OTHERS]:
        screen.on_output(line)
    assert capsys.readouterr().err.splitlines() == ["before"]
    screen.on_end(verdict)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("harness ")]
    assert lines == expected


def test_the_traceback_that_ended_a_rank_is_shown_long_after_one_that_it_outlived(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Screen("plain")
    harmless = [f"[rank1]: {line}" for line in (MINE[0], "  File z", "KeyError: 'caught'")]
    for line in [*harmless, *(f"[rank1]: line {i}" for i in range(900)), *OTHERS]:
        screen.on_output(line)
    screen.on_end(Verdict("failed", 1, "boom", 1, crashed=True))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == harmless
    assert lines[-3:] == OTHERS
    assert len(lines) <= 400


def test_a_traceback_that_the_run_outlives_is_shown_as_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen("plain", 50)
    screen.on_metrics(RUN)
    for line in MINE:
        screen.on_output(line)
    lines = shown(screen, capsys, row(20))
    assert lines[:3] == MINE
    assert lines[3].startswith("step 20/200")
    screen.on_output("later")
    assert capsys.readouterr().err.splitlines() == ["later"]


def test_the_last_lines_of_ranks_that_lost_another_explain_nothing() -> None:
    screen = Screen("quiet")
    for line in MINE:
        screen.on_output(line)
    screen.on_end(Verdict("failed", 137, "killed", 1))
    assert list(screen.last_lines) == []
