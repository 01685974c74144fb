# SPDX-License-Identifier: Apache-2.0
"""The table of dependency sets: a row a set, the newest result of each."""

from __future__ import annotations

from pathlib import Path

from tests.releases.dependency_sets import BEGIN, END, PAGE, count_results, replace_row


def test_a_row_replaces_that_of_its_set() -> None:
    page = f"before\n{BEGIN}{END}after\n"
    once = replace_row(replace_row(page, "oldest", "| oldest | 1 |\n"), "default", "| default | 1 |\n")
    twice = replace_row(once, "oldest", "| oldest | 2 |\n")
    assert twice.startswith(f"before\n{BEGIN}| Set | ")
    assert twice.endswith(f"| default | 1 |\n| oldest | 2 |\n{END}after\n")
    head, rule, row = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].splitlines()[:3]
    assert head.count("|") == rule.count("|") == row.count("|")


def test_results_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "results.xml"
    file.write_text('<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>')
    assert count_results(file) == (3, 3, 3)
