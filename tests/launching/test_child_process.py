# SPDX-License-Identifier: Apache-2.0
"""Children of this package: what they import, what they answer, and when they end. Needs nothing; seconds."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.interpreter import python_command
from harness.launching.process import child_process
from harness.launching.process.child_process import ChildAnswer, child_environ, read_child_answer, read_child_lines

ROOT = Path(harness.__file__).resolve().parents[1]


def test_a_child_finds_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/more")
    environ = child_environ({"EXTRA": "1"})
    assert (environ["PYTHONPATH"], environ["EXTRA"]) == (f"{ROOT}{os.pathsep}/more", "1")
    assert "EXTRA" not in os.environ


def test_site_packages_are_not_put_before_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(ROOT)])
    assert "PYTHONPATH" not in child_environ()


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('noise'); print('{\"a\": 1}')", ChildAnswer(0, {"a": 1})),
        ("print('{\"a\": 1}'); raise SystemExit(3)", ChildAnswer(3, {"a": 1})),
        ("print('[1]')", ChildAnswer(0)),
        ("print('{torn')", ChildAnswer(0)),
        ("", ChildAnswer(0)),
        ("import time; time.sleep(60)", ChildAnswer(None)),
    ],
)
def test_the_last_line_is_the_answer(code: str, answer: ChildAnswer) -> None:
    assert read_child_answer(python_command("-c", code), timeout=2.0 if "sleep" in code else 30.0) == answer


def test_a_program_that_is_missing_has_no_answer() -> None:
    assert read_child_answer(["/nonexistent/program"]) == ChildAnswer(None)


def test_lines_are_passed_on_as_they_come() -> None:
    code = "print('{\"n\": 1}', flush=True); print('noise'); print('{\"n\": 2}')"
    lines: list[dict[str, Any]] = []
    assert read_child_lines(python_command("-c", code), lines.append, timeout=30.0) == lines == [{"n": 1}, {"n": 2}]


def test_a_child_that_is_silent_for_too_long_is_killed() -> None:
    start = time.monotonic()
    assert read_child_lines(python_command("-c", "import time; time.sleep(60)"), print, timeout=1.0) == []
    assert time.monotonic() - start < 20


def test_a_child_that_is_read_ends_with_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(60)"
    code = "import sys; from harness.launching.process.child_process import read_child_lines; "
    code += f"read_child_lines([sys.executable, '-c', {child!r}], print, timeout=60)"
    with subprocess.Popen([sys.executable, "-c", code], env=child_environ()) as reader:
        wait_until(lambda: pid_file.exists() and bool(pid_file.read_text()))
        reader.terminate()
    wait_until(lambda: not Path(f"/proc/{pid_file.read_text()}").exists())


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_session_ends_with_all_that_it_started(tmp_path: Path) -> None:
    grandchild = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    code = f"{grandchild}; print('ready', flush=True); import time; time.sleep(60)"
    child = child_process.spawn_child([sys.executable, "-c", code], tmp_path, subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child_process.kill_session(child, 1.0)
    assert child.returncode is not None
    assert child_process.find_run_processes(tmp_path, child.pid) == []
    child.stdout.close()
