# SPDX-License-Identifier: Apache-2.0
"""The launcher that is started before its orders are known does what the same program does when started with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.launching.hosts.local_host import workers_folder
from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher
from harness.spec.run_spec import LaunchSpec

PROGRAM = """\
import json, os, sys
assert "deepspeed.launcher.runner" not in sys.modules  # it reads the environment while it is imported
print(json.dumps([__name__, sys.argv, sys.path[0], os.getcwd(), sys.stdin.read(), dict(os.environ)]))
sys.exit(7)
"""


def program(folder: Path, python: str = sys.executable) -> Path:
    file = folder / "deepspeed"
    file.write_text(f"#!{python}\n{PROGRAM}")
    file.chmod(0o755)
    return file


def of(file: Path, **environ: str) -> SimpleNamespace:
    return SimpleNamespace(
        deepspeed=(str(file),), scripts=workers_folder(), cwd=file.parent, environ={**os.environ, **environ}
    )


def plan(file: Path) -> SimpleNamespace:
    words = (str(file), "--hostfile", "a b", "$(touch x)")
    return SimpleNamespace(argv=words, cwd=file.parent, environment=lambda base: {"PATH": base["PATH"], "ONLY": "1"})


def test_it_is_the_program_with_its_words_environment_and_folder(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    file = program(tmp_path)
    ahead = PrewarmedLauncher.start(of(file, EARLIER="1"), LaunchSpec())
    assert ahead is not None
    child = ahead.run(plan(file))
    assert child is not None
    said, _ = child.communicate(timeout=120)
    plain = subprocess.run(
        [*plan(file).argv],
        env=plan(file).environment(os.environ),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    mine, direct = (json.loads(text.splitlines()[-1]) for text in (said, plain.stdout))
    extra = {"LC_CTYPE", "__PYVENV_LAUNCHER__"}  # of the interpreter itself
    assert mine[:5] == direct[:5] == ["__main__", [*plan(file).argv], str(tmp_path), str(tmp_path), ""]
    assert {k: v for k, v in mine[5].items() if k not in extra} == {
        k: v for k, v in direct[5].items() if k not in extra
    }
    assert child.returncode == plain.returncode == 7
    assert not (tmp_path / "x").exists()


def test_a_program_of_another_python_is_not_started_ahead(tmp_path: Path) -> None:
    assert PrewarmedLauncher.start(of(program(tmp_path, "/usr/bin/env other")), LaunchSpec()) is None
    assert PrewarmedLauncher.start(of(tmp_path / "none"), LaunchSpec()) is None


def test_orders_for_another_program_end_it(tmp_path: Path) -> None:
    ahead = PrewarmedLauncher.start(of(program(tmp_path)), LaunchSpec())
    assert ahead is not None
    assert ahead.run(plan(tmp_path / "another")) is None
    assert ahead.child.returncode is not None
