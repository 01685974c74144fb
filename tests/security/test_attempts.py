# SPDX-License-Identifier: Apache-2.0
"""The list of attempts is whole, and its page is up to date."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.security.attempts import GROUPS, read_attempts, render_page

PAGE = Path(__file__).with_name("ATTEMPTS.md")


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "run `python -m tests.security.attempts > tests/security/ATTEMPTS.md`"
    )


def test_ids_are_unique_and_every_group_is_attacked() -> None:
    ids = [attempt.id for attempt, _ in read_attempts()]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert {name[0] for name in ids} == set(GROUPS)
    assert len(ids) >= 120


def test_every_attempt_says_what_happens() -> None:
    assert [a.id for a, _ in read_attempts() if not (a.attack and a.before and a.after)] == []
