# SPDX-License-Identifier: Apache-2.0
"""The table of what a resume may change is the code's, and each key that it calls applied has a case in the test."""

from __future__ import annotations

from pathlib import Path

from harness.checkpoints.change_meanings import MEANINGS, meaning_of
from tests.docs.resume_page import leaf_keys, shown_changes, to_markdown
from tests.support.changed_keys import CHANGES, NOT_SHOWN, is_in_ci

PAGE = Path(__file__).parents[2] / "docs" / "resume-changes.md"


def test_the_page_is_the_rules() -> None:
    assert PAGE.read_text(encoding="utf-8") == to_markdown()


def test_each_key_that_is_applied_is_shown() -> None:
    applied = {key for key in leaf_keys() if meaning_of(key) in ("blocks", "effect")}
    assert {key for key in applied if not shown_changes(key)} == set(NOT_SHOWN)
    assert any(map(is_in_ci, CHANGES))


def test_each_rule_is_about_a_key() -> None:
    others = {"world", "dtype", "choices", "deepspeed.optimizer.type"}  # of a manifest, of older ones, of DeepSpeed
    known = {key[:end] for key in leaf_keys() for end in (*(i for i, c in enumerate(key) if c == "."), len(key))}
    assert set(MEANINGS) - others <= known
