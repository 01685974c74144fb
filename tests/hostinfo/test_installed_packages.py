# SPDX-License-Identifier: Apache-2.0
"""A package that looks like DeepSpeed, installed in each way there is: found as a new Python finds it, with its release.

setuptools builds the editable wheels, which are unpacked as pip does: pip itself would first uninstall a DeepSpeed that this
interpreter has. Another Python, without site-packages, is asked about all.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.19.8+abc123"
SETUP = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "deepspeed"
version = "0.19.8+abc123"
[tool.setuptools]
packages = ["deepspeed", "deepspeed.runtime"]
"""
ASK = """
import json, site, sys
root, site_folder, *path = sys.argv[1:]
sys.path[:0] = path
sys.path.append(root)
if site_folder:
    site.addsitedir(site_folder)
from harness.facts.deepspeed_version import installed_version
from harness.hostinfo.installed_packages import find_installation, find_version
from harness.patches.targets import compute_digest
found = find_installation("deepspeed")
hidden = [] if found is None else [str(folder) for folder in found.find_hidden()]
digests = [compute_digest(name) for name in ("deepspeed.runtime.engine:save", "deepspeed.runtime.other:load")]
assert not {name for name in sys.modules if name.startswith("deepspeed")}
print(json.dumps([found and str(found.folder), find_version("deepspeed"), installed_version(), hidden, digests]))
"""
BUILD = "import sys; from setuptools.build_meta import build_editable as b; print(b(sys.argv[1], {'editable_mode': sys.argv[2]}))"
SAVED = "def save(): return 1\n"


def ask(site_folder: Path | str, *path: Path) -> dict[str, Any]:
    command = [sys.executable, "-I", "-S", "-c", ASK, str(ROOT), str(site_folder), *map(str, path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(("folder", "version", "installed", "hidden", "digests"), json.loads(done.stdout), strict=True))


def write_package(folder: Path, text: str = SAVED) -> Path:
    package = folder / "deepspeed"
    (package / "runtime").mkdir(parents=True)
    for file in ("__init__.py", "runtime/__init__.py"):
        (package / file).touch()
    (package / "runtime" / "engine.py").write_text(text, encoding="utf-8")
    return package


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="needs setuptools, which makes the editable")
@pytest.mark.parametrize("mode", ["lenient", "compat", "strict"])
def test_editable_installations(mode: str, tmp_path: Path) -> None:
    package = write_package(tmp_path / "source")
    (tmp_path / "source" / "pyproject.toml").write_text(SETUP, encoding="utf-8")
    site_folder = tmp_path / "env"
    wheel = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path), mode],
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]
    with zipfile.ZipFile(tmp_path / wheel) as file:
        file.extractall(site_folder)
    (metadata,) = site_folder.glob("*.dist-info")
    url = {"dir_info": {"editable": True}, "url": package.parent.as_uri()}
    (metadata / "direct_url.json").write_text(json.dumps(url), encoding="utf-8")
    answer = ask(site_folder)
    assert Path(answer["folder"], "runtime", "engine.py").resolve() == package / "runtime" / "engine.py"
    assert (answer["version"], answer["installed"]) == (VERSION, VERSION)
    assert (answer["digests"][0] is not None, answer["digests"][1]) == (True, None)
    # A folder without modules hides a package that only a finder knows, and no other.
    (tmp_path / "results" / "deepspeed").mkdir(parents=True)
    hidden = ask(site_folder, tmp_path / "results")
    assert (hidden["installed"] is None) == (mode == "lenient")
    # Another installation in front hides both kinds.
    front = write_package(tmp_path / "front", "def load(): return 2\n")
    shadowing = ask(site_folder, tmp_path / "front")
    assert (shadowing["folder"], shadowing["digests"][0]) == (str(front), None)
    assert [Path(place, "runtime", "engine.py").resolve() for place in shadowing["hidden"]] == [
        package / "runtime" / "engine.py"
    ]


def test_a_wheel_an_archive_and_a_source_tree(tmp_path: Path) -> None:
    package = write_package(tmp_path / "wheel")
    metadata = tmp_path / "wheel" / f"deepspeed-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {VERSION}\n")
    wheel = ask("", tmp_path / "wheel")
    assert (wheel["folder"], wheel["version"], wheel["hidden"]) == (str(package), VERSION, [])
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "wheel")
    zipped = ask("", Path(archive))
    assert (zipped["folder"], zipped["version"]) == (f"{archive}/deepspeed", VERSION)
    assert zipped["digests"] == wheel["digests"]
    clone = write_package(tmp_path / "clone")
    (tmp_path / "clone" / "version.txt").write_text("0.20.0\n")
    both = ask("", tmp_path / "clone", tmp_path / "wheel")
    assert (both["folder"], both["version"], both["hidden"]) == (str(clone), "0.20.0", [str(package)])


def test_namespaces_inside_a_package(tmp_path: Path) -> None:
    package = write_package(tmp_path)
    (package / "runtime" / "__init__.py").unlink()
    assert ask("", tmp_path)["digests"][0] is not None


def test_where_there_is_none() -> None:
    assert ask("") == {"folder": None, "version": None, "installed": None, "hidden": [], "digests": [None, None]}
