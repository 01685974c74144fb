# SPDX-License-Identifier: Apache-2.0
"""The files of `harness.workers` as programs: started by path from anywhere, and named like no other module."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launching.hosts.local_host import workers_folder

ROOT = Path(__file__).parents[2]
WORKERS = sorted(workers_folder().glob("*.py"))
WITH_HELP = [
    "train_worker",
    "export_worker",
    "preview_worker",
    "synthetic_files_worker",
    "op_builder",
    "allreduce_worker",
]
SCRIPTS = [*(workers_folder() / f"{name}.py" for name in WITH_HELP), *(ROOT / "launch").glob("*.py")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_program_starts_from_any_folder(script: Path, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", str(script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {script.name}")


@pytest.mark.parametrize("worker", [file.stem for file in WORKERS if file.stem != "__init__"])
def test_a_worker_shadows_no_module(worker: str) -> None:
    """Without `-P` its folder is the first that Python looks into."""
    assert worker not in sys.stdlib_module_names
    assert importlib.util.find_spec(worker) is None
