# SPDX-License-Identifier: Apache-2.0
"""The wheel, away from the clone: what it has is enough to check, to plan, to render, and to train up to the report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.training
ROOT = Path(__file__).parents[2]
SHORT = ("train.max_steps=2", "train.per_device_train_batch_size=1", "eval.max_batches=1", "export.sample_tokens=2")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel alone."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # setuptools would put files of an earlier build into the wheel
    shutil.copytree(ROOT / "harness", source / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    [wheel] = folder.glob("deepspeed_harness-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(unpacked: Path, cwd: Path, *arguments: str) -> str:
    """The output of a command of the package in that folder."""
    code = "import harness, sys; print(harness.__file__, file=sys.stderr); from harness.__main__ import start; start()"
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stderr.startswith(str(unpacked)), "the package of the clone was imported"
    return done.stdout


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """A folder outside of the clone with the demo recipe."""
    (tmp_path / "demo.yaml").write_bytes((ROOT / "ds_configs" / "demo.yaml").read_bytes())
    return tmp_path


def test_it_checks_plans_and_renders(unpacked: Path, away: Path) -> None:
    assert "OK." in run(unpacked, away, "validate-config", "demo.yaml", "--deepspeed-version", "0.19.8")
    assert "host" in run(unpacked, away, "plan", "demo.yaml")
    assert run(unpacked, away, "render", "demo.yaml") == (ROOT / "ds_configs" / "demo.json").read_text("utf-8")
    assert "OF060" in run(unpacked, away, "explain", "releases")


def test_it_has_the_licences_of_what_it_ships(unpacked: Path) -> None:
    [folder] = unpacked.glob("deepspeed_harness-*.dist-info")
    names = {path.name for path in (folder / "licenses").rglob("*") if path.is_file()}
    assert names == {"LICENSE", "uPlot.LICENSE"}


def test_it_trains_up_to_the_report(unpacked: Path, away: Path) -> None:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    run(unpacked, away, "launch", "demo.yaml", *settings)
    run(unpacked, away, "report", "runs/latest", "-o", "page.html")
    assert "demo" in (away / "page.html").read_text("utf-8")
