# SPDX-License-Identifier: Apache-2.0
"""Charts as data: nothing is lost in thinning, areas lie on each other. Needs nothing; milliseconds."""

from __future__ import annotations

from pathlib import Path

from harness.run_records.run_record import read_run_record
from harness.views.report.charts import (
    Chart,
    Series,
    average_points,
    describe_series,
    format_value,
    render_charts,
    smooth_points,
    thin_points,
)
from harness.views.report.training_charts import build_speed_charts
from tests.support.sample_run import head, ranks, tiny, write_run


def test_thinning_keeps_every_spike_and_the_order() -> None:
    points = [(float(x), 1.0) for x in range(10_000)]
    points[4321], points[7000] = (4321.0, 99.0), (7000.0, -5.0)
    kept = thin_points(points, 500)
    assert len(kept) <= 501
    assert (4321.0, 99.0) in kept
    assert (7000.0, -5.0) in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thin_points(points[:100], 500) == points[:100]


def test_a_mean_keeps_the_length_and_an_average_the_mean() -> None:
    points = [(float(x), float(x % 2)) for x in range(1000)]
    smooth = smooth_points(points, 100)
    assert len(smooth) == 1000
    assert all(abs(y - 0.5) < 0.02 for _, y in smooth)
    assert [y for _, y in average_points(points, 10)] == [0.5] * 10


def test_areas_lie_on_each_other_and_their_table_has_their_own_heights() -> None:
    one, two = [(1.0, 2.0), (2.0, 3.0)], [(1.0, 0.5), (2.0, 0.25)]
    html, data = render_charts(
        [Chart("Split", [Series("a", one, "area"), Series("b", two, "area")], "s")], 100, first=3
    )
    assert data[0]["id"] == "chart3"
    assert data[0]["series"][1]["ys"] == [2.5, 3.25]
    assert '<td class="num">0.25 s</td>' in html


def test_the_sentence_says_where_a_series_starts_and_ends() -> None:
    series = [Series("loss", [(1, 5.0), (2, 7.0), (3, 2.0)]), Series("entropy", [(0, 3.29)], "rule")]
    assert describe_series(series, "") == "Loss 5 at step 1, 2 at 3; between 2 and 7. Entropy 3.29."
    waits = [Series("communication", [(21, 6.888), (22, 1.0), (23, 2.826)])]
    assert describe_series(waits, "s") == "Communication 6.888 s at step 21, 2.826 s at 23; between 1 and 6.888 s."
    assert describe_series([Series("memory", [(1, 20.0), (2, 20.0001)])], "GiB") == "Memory steady at 20 GiB."


def test_values_are_short() -> None:
    assert [format_value(v) for v in (0.00012345, 12.3456, 65_505, 7.86e7)] == ["0.0001234", "12.35", "65.5k", "78.6M"]
    assert format_value(38.04, "%") == "38.04%"
    assert format_value(4.02, "s") == "4.02 s"


def test_titles_and_names_are_escaped() -> None:
    html, _ = render_charts([Chart("<b>", [Series("<i>x", [(1, 1)], "dots")])], 10)
    assert "<b>" not in html
    assert "<i>x" not in html


def test_a_chart_without_points_says_so() -> None:
    html, data = render_charts([Chart("Loss", [Series("rule", [(0, 1)], "rule")])], 10)
    assert "no data" in html
    assert data == []


def test_use_and_power_of_the_gpus(tmp_path: Path) -> None:
    use = [{"gpu_utilization": [90, None], "gpu_power": [600.0, 650.5]}, {"gpu_utilization": [None, None]}]
    lines = [head(tiny()), *({**ranks(n, 2), **use[n - 1]} for n in (1, 2))]
    used, power = build_speed_charts(read_run_record(write_run(tmp_path / "run", tiny(), lines)))[-2:]
    assert (used.title, [list(series.points) for series in used.series]) == ("Use of the GPUs", [[(1, 90)]])
    assert [list(series.points) for series in power.series] == [[(1, 625.25)], [(1, 600)], [(1, 650.5)]]
