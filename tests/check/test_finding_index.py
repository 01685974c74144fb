# SPDX-License-Identifier: Apache-2.0
"""The rows of all findings: names, families, and the id that was probably meant."""

from __future__ import annotations

from harness.check.finding_index import FAMILIES, find_nearest_id, list_rows, rows_of_family
from harness.views.gate_pages import render_page


def test_names_are_unique_and_lead_to_their_id():
    names = [row.name for row in list_rows()]
    assert len(set(names)) == len(names)
    assert find_nearest_id("no-sutch-column") == "MD112"
    assert render_page("no-such-column") == render_page("MD112") == render_page("md112")


def test_every_family_has_a_title_and_its_rows():
    assert {row.id[:2] for row in list_rows()} <= set(FAMILIES)
    assert [row.id for row in rows_of_family("of")] == [row.id for row in list_rows() if row.id.startswith("OF")]
    assert rows_of_family("XX") == []
