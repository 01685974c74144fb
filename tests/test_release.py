# SPDX-License-Identifier: Apache-2.0
"""A release has one number: `harness --version`, the CHANGELOG, the package and the name of a tag agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)
TAG = re.compile(r"v(\d+\.\d+\.\d+)")


def check_tag(name: str, version: str, released: list[str]) -> str:
    """A fault of a tag of this commit, or nothing."""
    match = TAG.fullmatch(name)
    if match is None:
        return f"`{name}` is not vX.Y.Z"
    if match[1] != version:
        return f"`{name}` is on a commit whose version is {version}"
    return "" if match[1] in released else f"the CHANGELOG has no `## [{match[1]}] - DATE`"


def test_the_changelog_ends_at_the_version() -> None:
    headings = HEADING.findall(CHANGELOG)
    assert len(headings) == len(re.findall(r"^## ", CHANGELOG, re.MULTILINE)), (
        "a heading is not `## [X.Y.Z] - YYYY-MM-DD`"
    )
    released = [name for name, date in headings if date]
    assert [name for name, date in headings if not date] in ([], ["Unreleased"])
    assert released[0] == harness.__version__
    assert released == sorted(released, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    for name, _ in headings:
        assert f"\n[{name}]: #" in CHANGELOG, f"no link for [{name}]"


def test_the_command_prints_the_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--version"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[0] == f"harness {harness.__version__}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "harness.__version__"}


def test_a_tag_has_the_number_of_its_commit() -> None:
    released = [name for name, date in HEADING.findall(CHANGELOG) if date]
    command = ["git", "tag", "--points-at", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    tags = done.stdout.split() if done.returncode == 0 else []
    if os.environ.get("GITHUB_REF_TYPE") == "tag":
        tags.append(os.environ["GITHUB_REF_NAME"])
    assert [fault for tag in tags if (fault := check_tag(tag, harness.__version__, released))] == []


def test_wrong_tags_are_faults() -> None:
    assert check_tag("v0.1.0", "0.1.0", ["0.1.0"]) == ""
    assert check_tag("0.1.0", "0.1.0", ["0.1.0"]) == "`0.1.0` is not vX.Y.Z"
    assert check_tag("v0.2.0", "0.1.0", ["0.1.0"]) == "`v0.2.0` is on a commit whose version is 0.1.0"
    assert check_tag("v0.2.0", "0.2.0", ["0.1.0"]) == "the CHANGELOG has no `## [0.2.0] - DATE`"
