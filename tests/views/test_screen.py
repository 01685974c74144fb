# SPDX-License-Identifier: Apache-2.0
"""The screen of a running launch, mode by mode. Needs nothing; a second."""

from __future__ import annotations

import io
import json
import re
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


def visible_lines(output: str) -> list[str]:
    """The lines that a terminal shows: rich moves the cursor up (`ESC[1A`), erases lines (`ESC[2K`) and returns."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part == "\x1b[1A":
            at -= 1
        elif part == "\x1b[2K":
            lines[at] = ""
        elif not part.startswith(("\x1b", "\r")):
            lines[at] += part
    return lines


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
    (last,) = shown(Screen("plain"), capsys, RUN, row(200))
    assert " left" not in last  # the last save and evaluation follow: how long they take is not known


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


def test_an_op_that_was_compiled_before_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen("plain")
    screen.on_op_build("deepspeed_shm_comm", 4.0, None)
    screen.on_op_build("cpu_adam", 4.0, 40.0)
    assert [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "loading deepspeed_shm_comm, which is compiled",
        "compiling cpu_adam, about 40.0 s the first time",
    ]


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
    *lines, note = capsys.readouterr().err.splitlines()
    assert lines[-3:] == OTHERS
    assert len(lines) == 20
    assert "more lines of this are in the log" in note


def test_of_a_long_traceback_the_frames_of_libraries_stay_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    def frame(file: str) -> list[str]:
        return [f'  File "{file}", line 7, in f', "    g(x)", "    ^^^^"]

    library = frame("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py")
    own = frame("models/mine.py")
    first = [MINE[0], *frame("/x/harness/runtime/train.py"), *20 * library, *own, *library, "ValueError: a"]
    chained = ["During handling of the above exception, another exception occurred:", MINE[0], *library, "E: b"]
    screen = Screen("plain")
    screen.on_start(2, 1, Path("runs/r/logs/launcher.log"))
    capsys.readouterr()
    for line in [*first, *chained]:
        screen.on_output(f"[rank1]: {line}")
    screen.on_end(Verdict("failed", 1, "b", 1, crashed=True))
    *lines, note = capsys.readouterr().err.splitlines()
    expected = [MINE[0], *own, *library, "ValueError: a", *chained]
    assert lines == [f"[rank1]: {line}" for line in expected]
    assert note.endswith("63 more lines of this are in runs/r/logs/launcher.log")


def test_what_the_ranks_do_before_the_first_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("harness.views.screen.time.monotonic", lambda: now)
    screens = {mode: Screen(mode) for mode in ("plain", "json", "quiet", "bar")}
    shown = {}
    for mode, screen in screens.items():
        now = 100.0
        screen.on_start(2, 1, Path("log"))
        capsys.readouterr()
        screen.on_start_up("starting Python, torch and DeepSpeed")
        now = 112.5
        screen.on_start_up("building the engine (1 of 2 ranks)")
        screen.on_start_up("building the engine")
        screen.on_start_up("")
        screen.on_metrics(RUN)
        screen.close()
        shown[mode] = capsys.readouterr().err
    assert shown["plain"].splitlines() == [
        "harness ranks are starting Python, torch and DeepSpeed",
        "harness ranks are building the engine (1 of 2 ranks), 12.5 s after the start",
    ]
    assert [json.loads(line).get("activity") for line in shown["json"].splitlines()][:4] == [
        "starting Python, torch and DeepSpeed",
        "building the engine (1 of 2 ranks)",
        "building the engine",
        "",
    ]
    assert shown["quiet"] == ""
    assert "ranks are starting Python, torch and DeepSpeed" in shown["bar"]
    assert not any("ranks are" in line for line in visible_lines(shown["bar"]))  # the bar of training follows


def test_the_bar_of_an_attempt_that_failed_goes_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that is emulated shows no step of the attempt before; one of a completed run keeps its bar."""
    monkeypatch.setenv("COLUMNS", "140")
    for verdict, kept in ((Verdict("failed", 137, "killed", 1), False), (Verdict("completed", 0), True)):
        screen = Screen("bar", 50)
        for one in (RUN, row(20), row(140)):
            screen.on_metrics(one)
        screen.on_end(verdict)
        screen.on_note("attempt 2 starts from step 0")
        lines = visible_lines(capsys.readouterr().err)
        assert any("140/200" in line for line in lines) is kept
        assert any("attempt 2" in line for line in lines)


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


def test_a_terminal_that_was_closed_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stderr", Closed())
    screen = Screen("bar", 50)
    screen.on_start(2, 1, Path("log"))
    screen.on_start_up("building the engine")
    screen.on_start_up("taking the first step")
    for one in (RUN, row(20), row(40)):
        screen.on_metrics(one)
    screen.on_note("a note")
    screen.on_end(Verdict("completed", 0))
    screen.close()
