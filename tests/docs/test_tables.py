# SPDX-License-Identifier: Apache-2.0
"""Tables of the documentation: figures stand in a result file, keys and commands are those of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cli.command_list import COMMANDS
from harness.spec.json_schema import run_spec_schema
from harness.views.spec_reference import render_spec_reference
from tests.support.markdown_blocks import PAGES, ROOT

FROM = re.compile(r"<!-- from (benchmarks/results/\S+) -->\n((?:\|.*\n)+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_copied_table_stands_in_its_result_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, table in FROM.findall(text):
        assert table in (ROOT / file).read_text(encoding="utf-8"), file
    assert len(FROM.findall(text)) == len(re.findall("^<!-- from", text, re.MULTILINE)), (
        "the comment is on the line before the table"
    )


def test_the_benchmarks_page_copies_tables() -> None:
    assert len(FROM.findall((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))) >= 3


def test_the_reference_of_keys_is_the_schema() -> None:
    written = (ROOT / "docs" / "spec-keys.md").read_text(encoding="utf-8")
    assert written == render_spec_reference(run_spec_schema()) + "\n", "run `make pages`"


def test_the_readme_has_one_line_for_each_command() -> None:
    rows = re.findall(r"^\| \[?`harness ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


def test_every_recipe_is_in_its_table_and_has_its_json() -> None:
    text = (ROOT / "ds_configs" / "README.md").read_text(encoding="utf-8")
    recipes = sorted(path.stem for path in (ROOT / "ds_configs").glob("*.yaml"))
    assert sorted(re.findall(r"^\| `([\w.-]+)`", text, re.MULTILINE)) == recipes
    assert sorted(path.stem for path in (ROOT / "ds_configs").glob("*.json")) == recipes
