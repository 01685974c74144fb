# SPDX-License-Identifier: Apache-2.0
"""Tables of the documentation: figures stand in a result file, keys and commands are those of the program."""

from __future__ import annotations

import re
import subprocess
import sys
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


FLAGSHIP_ROW = re.compile(r"^\| .*`(llama-3\.1-70b-[\w-]+\.yaml)`.* \| (.*) \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)
FLAGSHIP_ROWS = FLAGSHIP_ROW.findall((ROOT / "docs" / "flagship.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", FLAGSHIP_ROWS, ids=lambda row: row[0])
def test_the_figures_of_70b_on_one_node_are_those_of_the_plan(row: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "harness", "plan", f"ds_configs/{row[0]}"]
    printed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    figures = dict(re.findall(r"^(GPU|Host|NVMe|Step) +(\S+ \S+(?: \([^)]+\))?)", printed, re.MULTILINE))
    assert row[1:] == tuple(figures.get(place, "") for place in ("GPU", "Host", "NVMe", "Step"))


def test_each_recipe_of_70b_on_one_node_has_figures() -> None:
    assert len(FLAGSHIP_ROWS) == 5
