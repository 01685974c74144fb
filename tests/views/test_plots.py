"""Charts: ticks, thinning, empty series. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from harness.views.plots import Series, line_chart, pair_bars, share_bar, thinned, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.95, 5.2, [1, 2, 3, 4, 5]),
        (-3, 3, [-2, 0, 2]),
        (0, 2.1e-3, [0, 0.0005, 0.001, 0.0015, 0.002]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected)


def test_thinning_keeps_means_and_few_points() -> None:
    points = [(float(i), float(i % 2)) for i in range(10_000)]
    few = thinned(points)
    assert len(few) <= 400
    assert few[0] == (12.0, pytest.approx(0.48))
    assert thinned(points[:10]) == points[:10]


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing was recorded" in line_chart("Loss", [Series("a", []), Series("rule", [(0, 1)], "rule")])


def test_a_rule_is_inside_the_picture_even_below_all_points() -> None:
    chart = line_chart("Loss", [Series("a", [(1, 5), (2, 6)]), Series("entropy", [(0, 1)], "rule")])
    y = float(chart.split('class="rule')[1].split('y1="')[1].split('"')[0])
    assert 0 < y < 260


def test_a_constant_and_a_single_point_can_be_drawn() -> None:
    assert "polyline" in line_chart("x", [Series("a", [(1, 0), (2, 0)])], zero=True)
    assert "circle" in line_chart("x", [Series("a", [(1, 7)])])


def test_titles_are_escaped() -> None:
    assert "<b>" not in line_chart("<b>", [Series("<b>", [(1, 1)], "dots"), Series("<b>", [(1, 2)])])


def test_shares_add_up_to_the_whole_bar() -> None:
    html = share_bar([("a", 1, "1 s"), ("b", 3, "3 s")])
    assert "width:25.00%" in html
    assert "width:75.00%" in html
    assert "(75%)" in html


def test_bars_share_a_scale() -> None:
    html = pair_bars([("planned", 50, "50"), ("measured", 200, "200")], [5, 1])
    assert 'class="c5" style="width:25.00%"' in html
    assert 'class="c1" style="width:100.00%"' in html
