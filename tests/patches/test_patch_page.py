# SPDX-License-Identifier: Apache-2.0
"""docs/patches.md and the docstrings that it is made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.facts.deepspeed_version import installed_source_folder
from harness.patches import patch_page
from harness.patches import patch_registry as registry
from harness.patches.patch_registry import all_patches

ROOT = Path(__file__).resolve().parents[2]
PATCHES = pytest.mark.parametrize("patch", all_patches(), ids=lambda patch: patch.name)
ADDRESS = re.compile(r"https://github\.com/[\w-]+/[\w-]+/(issues|pull)/\d+")


def test_the_page_is_current():
    assert (ROOT / "docs" / "patches.md").read_text() == patch_page.render_page(), "make pages"


@PATCHES
def test_a_docstring_has_its_paragraphs(patch):
    labels = patch_page.split_docstring(patch)
    expected = {"Upstream", "Patch"} | ({"Gain"} if patch.kind in ("memory", "performance", "start-up") else set())
    assert set(labels) == expected
    assert all(labels.values())
    assert patch.summary.endswith(".")


@PATCHES
def test_a_gain_names_the_file_that_measured_it(patch):
    gain = patch_page.split_docstring(patch).get("Gain", "")
    files = [ROOT / name for name in re.findall(r"`((?:benchmarks|tests)/[\w./]+)`", gain)]
    files += [ROOT / "harness" / "patches" / name for name in re.findall(r"`(\w+\.py)`", gain)]
    assert all(file.is_file() for file in files)
    assert bool(files) == bool(gain)


@PATCHES
def test_a_file_that_a_docstring_names_exists(patch):
    for name in re.findall(r"`(runtime/(?:checkpoint|models|parallel|pipeline)/[\w/]*(?:\.py)?)`", patch.docstring):
        assert (ROOT / "harness" / name).exists()


@PATCHES
def test_an_issue_is_an_address(patch):
    assert patch.upstream == "" or ADDRESS.fullmatch(patch.upstream)


@pytest.mark.skipif(installed_source_folder() is None, reason="needs DeepSpeed's files")
def test_changed_targets_are_listed(monkeypatch):
    patch = all_patches()[0]
    changed = patch._replace(targets=(patch.targets[0]._replace(digest="0" * 16), *patch.targets[1:]))
    monkeypatch.setattr(patch_page, "all_patches", lambda: (changed,))
    (line,) = patch_page.render_changes()
    assert line.startswith(f"{patch.name}: {patch.targets[0].name} is changed, tested 0000000000000000")
    assert patch.targets[0].digest in line


def test_at_most_27_patches():
    assert len(registry.all_patches()) <= 27
