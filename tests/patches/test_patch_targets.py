# SPDX-License-Identifier: Apache-2.0
"""Digests of definitions: stable where the code is the same, other where it is not."""

from __future__ import annotations

import pytest

from harness.patches import targets
from harness.patches.targets import Target, check_target, compute_digest

SOURCE = '''
import os
from math import floor as down

LIMIT: int = 3


def plain(a, b=1):
    """A docstring."""
    return a + b  # a comment


class Thing:
    """Another."""

    def method(self):
        return 1

    if LIMIT:
        def late(self):
            return 2


try:
    VALUE = 1
except ImportError:
    VALUE = 2
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `sample` with a module `code`, which can be written again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sample").mkdir()

    def write(text):
        (tmp_path / "sample" / "code.py").write_text(text)
        targets.compute_digest.cache_clear()
        targets._parse_module.cache_clear()

    write(SOURCE)
    return write


@pytest.mark.parametrize("name", ["plain", "Thing", "Thing.method", "Thing.late", "LIMIT", "VALUE", "down", "os"])
def test_definitions_are_found(name, package):
    assert compute_digest(f"sample.code:{name}") is not None


@pytest.mark.parametrize("name", ["nothing", "Thing.nothing", "plain.a"])
def test_what_is_not_defined_has_no_digest(name, package):
    assert compute_digest(f"sample.code:{name}") is None
    assert compute_digest("sample.no_module:plain") is None


def test_comments_docstrings_and_layout_do_not_count(package):
    before = compute_digest("sample.code:plain")
    package(
        SOURCE.replace("A docstring.", "Other words.").replace("  # a comment", "").replace("a + b", "(a +\n        b)")
    )
    assert compute_digest("sample.code:plain") == before


@pytest.mark.parametrize("change", [("a + b", "a - b"), ("b=1", "b=2"), ("def plain(a", "def plain(c, a")])
def test_other_code_is_a_change(change, package):
    target = Target("sample.code:plain", compute_digest("sample.code:plain"))
    assert check_target(target) == "as tested"
    package(SOURCE.replace(*change))
    assert check_target(target) == "changed"
    package(SOURCE.replace("def plain", "def renamed"))
    assert check_target(target) == "missing"


def test_any_of_several_tested_digests_will_do(package):
    first = compute_digest("sample.code:plain")
    package(SOURCE.replace("a + b", "a - b"))
    both = Target("sample.code:plain", f"{first}|{compute_digest('sample.code:plain')}")
    assert check_target(both) == "as tested"
    package(SOURCE)
    assert check_target(both) == "as tested"
    package(SOURCE.replace("a + b", "a * b"))
    assert check_target(both) == "changed"
