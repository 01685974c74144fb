# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheel, away from the clone: they hold the same package, enough to check, plan, render and train."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.training
ROOT = Path(__file__).parents[2]
SHORT = ("train.max_steps=2", "train.per_device_train_batch_size=1", "eval.max_batches=1", "export.sample_tokens=2")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, of the files that git has."""
    source = tmp_path_factory.mktemp("sdist") / "source"  # setuptools would add files of an earlier build
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, stdout=-1, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and name.split("/")[0] not in ("tests", "benchmarks"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(source.parent)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=300)
    [file] = source.parent.glob("deepspeed_harness-*.tar.gz")
    return file


def build_wheel(source: Path, folder: Path) -> Path:
    """The wheel that pip builds from a folder or an sdist."""
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True, capture_output=True, text=True, timeout=300)
    [wheel] = folder.glob("deepspeed_harness-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the folder that the sdist was built from."""
    return build_wheel(sdist.parent / "source", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """A folder with the files of the wheel alone."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "site")  # noqa: S202  (built a moment ago)
    return wheel.parent / "site"


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


def read_package(wheel: Path) -> dict[str, bytes]:
    """The files of the package in a wheel, and its licences."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(("RECORD", "WHEEL"))]
        return {name: archive.read(name) for name in names}


def test_the_sdist_builds_the_same_package(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    again = read_package(build_wheel(sdist, tmp_path))
    files = read_package(wheel)
    assert sorted(again) == sorted(files)
    assert [name for name in files if files[name] != again[name]] == []
    listed = subprocess.run(["git", "ls-files", "harness"], cwd=ROOT, stdout=-1, check=True, text=True).stdout.split()
    missing = set(listed) - set(files) - {"harness/README.md", "harness/gates/TABLE.md"}
    assert {name for name in missing if (ROOT / name).is_file()} == set()


def test_the_sdist_has_the_texts_of_a_release(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    texts = {
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE",
        "pyproject.toml",
        "harness/views/assets/uPlot.LICENSE",
    }
    assert texts <= names
    assert not any(name.startswith(("tests/", "benchmarks/", ".ci")) for name in names)


def test_it_checks_plans_and_renders(unpacked: Path, away: Path) -> None:
    assert "OK." in run(unpacked, away, "validate-config", "demo.yaml", "--deepspeed-version", "0.19.8")
    assert "host" in run(unpacked, away, "plan", "demo.yaml")
    assert run(unpacked, away, "render", "demo.yaml") == (ROOT / "ds_configs" / "demo.json").read_text("utf-8")
    assert "OF060" in run(unpacked, away, "explain", "releases")


def test_it_has_the_licences_of_what_it_ships(unpacked: Path) -> None:
    [folder] = unpacked.glob("deepspeed_harness-*.dist-info")
    names = {path.name for path in (folder / "licenses").rglob("*") if path.is_file()}
    assert names == {"LICENSE", "uPlot.LICENSE"}


@pytest.mark.nightly
def test_it_trains_up_to_the_report(unpacked: Path, away: Path) -> None:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    run(unpacked, away, "launch", "demo.yaml", *settings)
    run(unpacked, away, "report", "runs/latest", "-o", "page.html")
    assert "demo" in (away / "page.html").read_text("utf-8")
