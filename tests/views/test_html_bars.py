# SPDX-License-Identifier: Apache-2.0
"""Bars as HTML. Needs nothing; milliseconds."""

from __future__ import annotations

from harness.views.report.html_elements import render_pair_bars, render_share_bar


def test_shares_add_up_to_the_whole_bar() -> None:
    html = render_share_bar([("a", 1, "1 s"), ("b", 3, "3 s")])
    assert "width:25.00%" in html
    assert "width:75.00%" in html
    assert "(75%)" in html


def test_bars_share_a_scale() -> None:
    html = render_pair_bars([("planned", 50, "50"), ("measured", 200, "200")], [5, 1])
    assert 'class="c5" style="width:25.00%"' in html
    assert 'class="c1" style="width:100.00%"' in html


def test_names_are_escaped() -> None:
    assert "<b>" not in render_share_bar([("<b>", 1, "<b>")]) + render_pair_bars([("<b>", 1, "<b>")]).replace(
        "<b>&lt;b&gt;</b>", ""
    )
