# SPDX-License-Identifier: Apache-2.0
"""The heat map of ranks, from two to a thousand. Needs nothing; a second."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.run_records.run_record import read_run_record
from harness.views.report.ranks_section import render_ranks
from tests.support.sample_run import head, on_gpus, ranks, write_run


def section(folder: Path, world: int, slow: dict[int, float] | None = None, lines: int = 60) -> str:
    run = on_gpus()
    start = head(run, world=world, hosts=[f"node{rank // 8}" for rank in range(world)])
    return render_ranks(
        read_run_record(write_run(folder, run, [start, *(ranks(10 * n, world, slow) for n in range(1, lines))]))
    )


def row(html: str, name: str) -> str:
    return next(part for part in html.split("<tr>") if part.startswith(f'<th scope="row">{name} '))


def test_a_slow_rank_carries_its_figure_and_the_others_none(tmp_path: Path) -> None:
    html = section(tmp_path / "r", 8, {5: 0.4})
    assert len(re.findall(r">(3[89]|4[012])</td>", row(html, "rank 5"))) == 20
    assert not re.findall(r">\d+</td>", row(html, "rank 4"))
    figures = html.split("The ranks in figures")[1]
    assert figures.index(">5</td>") < figures.index(">0</td>")  # the slowest first
    assert "node0" in figures


def test_a_thousand_ranks_share_rows_and_none_is_lost(tmp_path: Path) -> None:
    html = section(tmp_path / "r", 1024, {777: 0.5}, lines=10)
    assert html.count('<th scope="row">ranks ') == 64
    assert ">5" in row(html, "ranks 768-783")
    assert "ranks 768-783 on 2 hosts" in html
    assert len(html) < 300_000


@pytest.mark.parametrize(
    "bad", [{"busy": None}, {"busy": []}, {"busy": [1.0]}, {"busy": ["x", None]}, {"busy": {"a": 1}}]
)
def test_lines_that_say_nothing(tmp_path: Path, bad: dict[str, object]) -> None:
    line = {**ranks(10, 2), "seconds": None, **bad}
    html = render_ranks(read_run_record(write_run(tmp_path / "r", on_gpus(), [head(on_gpus()), line])))
    assert "<script" not in html


def test_one_rank_has_no_peers(tmp_path: Path) -> None:
    assert section(tmp_path / "r", 1) == ""
