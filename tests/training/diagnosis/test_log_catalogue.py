# SPDX-License-Identifier: Apache-2.0
"""The messages of the installed DeepSpeed against the tables of the diagnosis. Reads its files; ten seconds."""

from __future__ import annotations

import ast

import pytest

from benchmarks.log_catalogue import (
    Answer,
    ask_installed,
    find_said_patterns,
    format_ungated,
    lines_of_sites,
    read_reasons,
)
from benchmarks.message_sites import read_sites
from harness.diagnosis.catalogue import releases_of
from harness.facts.deepspeed_version import installed_version

MAX_UNMAPPED = 150
MAX_UNGATED = 23


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return ask_installed()


def test_nine_of_ten_messages_have_a_cause_and_a_change(answers: list[Answer]) -> None:
    counted = [answer for answer in answers if answer.is_counted]
    mapped = [answer for answer in counted if answer.is_mapped]
    assert len(counted) > 1000
    assert len(mapped) / len(counted) >= 0.9


def test_the_list_of_the_others_is_exactly_those_that_are_not_mapped(answers: list[Answer]) -> None:
    """`python benchmarks/log_catalogue.py --unmapped` prints the rows; each needs a reason."""
    reasons = read_reasons()
    missing = {answer.site.key for answer in answers if answer.is_counted and not answer.is_mapped}
    assert sorted(missing - reasons.keys()) == [], "without a row in unmapped_messages.tsv"
    assert sorted(reasons.keys() - missing) == [], "stale rows of unmapped_messages.tsv"
    assert [key for key, reason in reasons.items() if len(reason) < 15] == []
    assert len(reasons) <= MAX_UNMAPPED


def test_every_message_of_the_installed_release_has_its_releases(answers: list[Answer]) -> None:
    """A row that is new or changed has none: `python benchmarks/log_catalogue.py --write`."""
    patterns = find_said_patterns(lines_of_sites(answer.site for answer in answers))
    ends = {pattern: releases_of(pattern) for pattern in patterns}
    assert sorted(p for p, said in ends.items() if said is None) == []
    assert {said[1] for said in ends.values() if said} == {installed_version()}


def test_an_assertion_without_a_message_is_never_certain(answers: list[Answer]) -> None:
    bare = [answer for answer in answers if answer.site.kind == "bare assert"]
    assert [a.site.key for a in bare if a.diagnosis.confidence == "certain"] == []


def test_a_site_is_rendered_as_a_log_shows_it() -> None:
    source = """
LIMIT = "limit"
class Error(Exception): ...
def check(count, path):
    assert count > 0, f"{LIMIT}: {count} is below " "zero"
    assert count
    message = "no file at {}".format(path)
    if not path:
        raise Error(message)
    try:
        pass
    except ValueError as error:
        raise error
    raise ValueError("%s of %d" % (count, 3)) from None
"""
    ast.parse(source)
    sites = read_sites({"runtime/x.py": source})
    assert [(site.kind, site.error_line) for site in sites] == [
        ("assert", "AssertionError: limit: 4 is below zero"),
        ("bare assert", "AssertionError"),
        ("raise", "deepspeed.runtime.x.Error: no file at /data/checkpoints/global_step10"),
        ("re-raise", "RuntimeError"),
        ("raise", "ValueError: 4 of 3"),
    ]
    assert "runtime/x.py" in sites[0].format_log()
    assert "in check" in sites[0].format_log()


def test_messages_about_the_json_are_those_that_gates_foresee(answers: list[Answer]) -> None:
    """`--ungated` prints the rest, which may shrink: a new one needs a gate, or is about state that no file shows."""
    rows = format_ungated(answers)
    assert len(rows) <= MAX_UNGATED
    assert any(row.startswith("LG145 sparse_gradients=null") for row in rows)
    assert not any(row.startswith(("OP013", "PR001")) for row in rows)  # these are gates
