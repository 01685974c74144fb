# SPDX-License-Identifier: Apache-2.0
"""`harness explain releases` and the page `docs/releases.md`."""

from __future__ import annotations

from pathlib import Path

from harness.facts.release_faults import DRAWN, RELEASE_CHANGES, RELEASE_FAULTS, TRIED
from harness.views.release_list import render_releases
from tests.docs.release_page import find_summary, to_markdown
from tests.releases.grid_file import load_grid

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated() -> None:
    assert (ROOT / "docs" / "releases.md").read_text(encoding="utf-8") == to_markdown()


def test_each_fault_is_listed_with_its_releases() -> None:
    text = render_releases("releases", 100)
    assert text is not None
    assert max(map(len, text.splitlines())) <= 100
    assert [fault.name for fault in (*RELEASE_FAULTS, *RELEASE_CHANGES) if fault.name not in text] == []
    assert "zero-2-keeps-the-last-micro-batch  0.17.6 to 0.18.2: " in text
    assert render_releases("zero.stage") is None


def test_a_release_has_its_own_faults() -> None:
    text = render_releases("0.18.2", 100)
    assert text is not None
    assert "zero-2-keeps-the-last-micro-batch" in text
    assert "accumulation-counted-at-each-output" not in text
    assert render_releases("0.1.2") is None


def test_each_release_of_the_grid_is_on_the_page() -> None:
    assert [release for release in load_grid()["releases"] if f"\n| {release} | " not in to_markdown()] == []


def test_the_package_knows_what_the_grid_was_run_on() -> None:
    assert {"tried": [*TRIED], "drawn": DRAWN} == find_summary()
    assert len(TRIED) > 30
