# SPDX-License-Identifier: Apache-2.0
"""A kept answer of the simulation is used again only while its engine would run the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.hostinfo.loaded_files import are_loaded_files_the_same
from harness.launching.process.child_process import child_environ
from harness.launching.programs import simulation

_LIST = """
    import json, time
    time.sleep(0.1)  # the package was written just now
    since = time.time()
    import engine.stage3
    from harness.hostinfo.loaded_files import list_loaded_files
    {during}
    print(json.dumps(list_loaded_files(since)))
"""


def _load_engine(folder: Path, during: str = "") -> Any:
    """The files of a process that runs the package `engine` of the folder."""
    (folder.parent / "tmp").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_LIST.format(during=during))],
        env=child_environ({"PYTHONPATH": str(folder), "TMPDIR": str(folder.parent / "tmp")}),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    (folder / "engine").mkdir(parents=True)
    for name in ("__init__.py", "stage3.py", "unused.py"):
        (folder / "engine" / name).write_text("LIMIT = 1000\n", encoding="utf-8")
        os.utime(folder / "engine" / name, (1e9, 1e9))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def _edit(packages: Path) -> None:
    (packages / "engine" / "stage3.py").write_text("LIMIT = 2000\n", encoding="utf-8")  # of the same length


def _edit_and_hide(packages: Path) -> None:
    _edit(packages)
    os.utime(packages / "engine" / "stage3.py", (1e9, 1e9))


def _remove(packages: Path) -> None:
    (packages / "engine" / "stage3.py").unlink()


def _overlay(packages: Path) -> None:
    overlay = packages.parent / "overlay"
    shutil.copytree(packages, overlay)
    sys.path.insert(0, str(overlay))


def _edit_another(packages: Path) -> None:
    (packages / "engine" / "unused.py").write_text("LIMIT = 3\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [(_edit, False), (_edit_and_hide, False), (_remove, False), (_overlay, False), (_edit_another, True)],
)
def test_an_answer_is_kept_for_the_same_bytes(
    change: Callable[[Path], None], is_kept: bool, packages: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(simulation.machine, "package_version", lambda name: "2.13.0" if name == "torch" else "0.19.8")
    monkeypatch.setattr(simulation, "_run_worker", lambda *_: {"peak": 1, "loaded": _load_engine(packages)})
    request: Any = SimpleNamespace(body={"run": {}})

    _, first = simulation.simulate_rank(request, print)
    _, second = simulation.simulate_rank(request, print)
    change(packages)
    monkeypatch.setattr(simulation, "_run_worker", lambda *_: {"peak": 2, "loaded": None})
    result, third = simulation.simulate_rank(request, print)

    assert (first, second, third) == (False, True, is_kept)
    assert result == {"peak": 1 if is_kept else 2}


def test_what_changed_while_it_ran_is_not_kept(packages: Path) -> None:
    touch = f"open({str(packages / 'engine' / 'stage3.py')!r}, 'w').close()"

    assert _load_engine(packages, touch) is None
    assert not are_loaded_files_the_same(None)


def test_shared_libraries_are_among_them(packages: Path) -> None:
    assert any(".so" in Path(file).name for file in _load_engine(packages)["files"])
