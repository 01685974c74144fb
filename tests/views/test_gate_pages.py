# SPDX-License-Identifier: Apache-2.0
"""Every id that the source can print has a page, and the table of gates is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.check.finding_index import FAMILIES, list_rows
from harness.diagnosis.catalogue import all_causes, all_rows
from harness.gates.registry import all_gates
from harness.views.gate_pages import page_text, render_page, render_table, render_table_markdown, wrap_text

ROOT = Path(__file__).parents[2]
ID = re.compile(rf'"((?:{"|".join(FAMILIES)})\d{{3}})[" ]')  # alone, or at the head of a gate, before its name


def used() -> set[str]:
    files = [f for folder in ("harness", "launch") for f in (ROOT / folder).rglob("*.py")]
    causes = {cause.id for cause in all_causes()} | {row.cause for row in all_rows()}
    return {id_ for f in files for id_ in ID.findall(f.read_text())} | causes


def test_every_id_in_the_source_has_a_page():
    assert len(used()) > 50
    assert sorted(id_ for id_ in used() if render_page(id_) is None) == []


def test_every_page_is_of_an_id_in_the_source():
    known = used()
    assert sorted(row.id for row in list_rows() if row.id not in known) == []


def test_the_table_in_the_project_is_the_one_that_is_derived():
    written = (ROOT / "harness" / "gates" / "TABLE.md").read_text()
    assert written == render_table_markdown(), "run: make pages"


def test_the_table_has_every_gate_with_all_its_cells():
    lines = [line for line in render_table_markdown().splitlines() if re.match(r"\| [A-Z]{2}\d{3} ", line)]
    cells = {line.split(" | ")[0].removeprefix("| "): re.split(r"(?<!\\)\|", line)[1:-1] for line in lines}
    assert set(cells) == {row.id for row in list_rows()}
    for gate in all_gates():
        assert len(cells[gate.id]) == 7
        assert all(cell.strip() for cell in cells[gate.id][:6])


@pytest.mark.parametrize("width", [40, 120])
def test_a_page_keeps_to_the_width_of_the_terminal(width):
    free = ("##", "Seen in: ", "To ignore", "Without this", "Needs:", "- ", "|", " ")
    for row in list_rows():
        text = re.sub(r"```.*?```", "", render_page(row.id, width) or "", flags=re.DOTALL)
        for line in text.splitlines()[1:]:
            assert line.startswith(free) or len(line) <= width or " " not in line, line
    for line in render_table(list_rows(), width).splitlines():
        assert len(line) <= width or re.fullmatch(r"[A-Z]{2}\d{3}  \S+", line), line


def test_wrapping_changes_no_word_and_no_code():
    for gate in all_gates():
        page = page_text(gate)
        for width in (40, 120):
            text = wrap_text(page, width)
            assert text.split() == page.split()
            assert re.findall(r"```.*?```", text, re.DOTALL) == re.findall(r"```.*?```", page, re.DOTALL)
            assert re.findall(r"^## .*$", text, re.MULTILINE) == re.findall(r"^## .*$", page, re.MULTILINE)
