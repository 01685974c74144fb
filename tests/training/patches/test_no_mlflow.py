# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed without mlflow, and mlflow afterwards."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launching.hosts.local_host import workers_folder

ROOT = Path(__file__).resolve().parents[3]
STUBS = workers_folder() / "stubs"


def answers(code: str, **environ: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="needs mlflow, which the extra `trackers` brings"
)
def test_deepspeed_is_imported_without_mlflow_which_stays_there_for_others() -> None:
    code = """
import json, os, sys
from harness.patches.no_mlflow import import_deepspeed
import_deepspeed()
from deepspeed.autotuning import autotuner
early = "mlflow" in sys.modules
import mlflow
print(json.dumps([autotuner.has_mlflow, early, mlflow.__file__.startswith(sys.argv[-1]), os.environ["PYTHONPATH"]]))
"""
    assert answers(code, PYTHONPATH=f"{STUBS}{os.pathsep}{ROOT}") == [False, False, False, str(ROOT)]


def test_the_launcher_is_imported_without_mlflow_by_its_path_alone() -> None:
    code = """
import json, sys
from deepspeed.autotuning import autotuner
print(json.dumps([autotuner.has_mlflow, "pandas" in sys.modules]))
"""
    assert answers(code, PYTHONPATH=str(STUBS)) == [False, False]


@pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="needs mlflow, which the extra `trackers` brings"
)
def test_both_patches_at_the_import_have_a_switch() -> None:
    code = """
import json, sys
from harness.patches.no_mlflow import import_deepspeed
import_deepspeed(%r)
from deepspeed.autotuning import autotuner
import cpuinfo
print(json.dumps([autotuner.has_mlflow, type(cpuinfo).__name__]))
"""
    assert answers(code % "auto", PYTHONPATH=str(ROOT)) == [False, "_CpuinfoCache"]
    assert answers(code % "off", PYTHONPATH=str(ROOT)) == [True, "module"]
    assert answers(code % {"no-mlflow": "off"}, PYTHONPATH=str(ROOT)) == [True, "_CpuinfoCache"]
    assert answers(code % {"cpuinfo-cache": "off"}, PYTHONPATH=str(ROOT)) == [False, "module"]
