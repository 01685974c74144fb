"""Every id that the source can print has a page."""

from __future__ import annotations

import re
from pathlib import Path

from harness.views.gate_pages import nearest_id, page, rows

ROOT = Path(__file__).parents[2]
ID = re.compile(r'"((?:SP|BT|ZR|OF|TP|PP|SQ|PR|OP|MD|CK|HO|MM|EN|GT|RN)\d{3})"')


def test_every_id_in_the_source_has_a_page():
    used = {
        id_
        for folder in ("harness", "launch")
        for f in (ROOT / folder).rglob("*.py")
        for id_ in ID.findall(f.read_text())
    }
    assert len(used) > 50
    assert sorted(id_ for id_ in used if page(id_) is None) == []


def test_every_page_is_of_an_id_in_the_source():
    used = {
        id_
        for folder in ("harness", "launch")
        for f in (ROOT / folder).rglob("*.py")
        for id_ in ID.findall(f.read_text())
    }
    assert sorted(id_ for id_, *_ in rows() if id_ not in used) == []


def test_names_are_unique_and_lead_to_their_id():
    names = [name for _, name, _, _ in rows()]
    assert len(set(names)) == len(names)
    assert nearest_id("no-sutch-column") == "MD112"
