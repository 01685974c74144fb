# SPDX-License-Identifier: Apache-2.0
"""The best checkpoint of a run: one for the list, the report and the terminal. Needs nothing; seconds."""

from __future__ import annotations

import json
from pathlib import Path

from harness.checkpoints.checkpoint_list import find_best_checkpoint, read_rows
from harness.checkpoints.evaluations import Evaluations
from harness.run_records.run_list import list_run_summaries
from harness.run_records.run_record import read_run_record
from harness.views.checkpoint import render_checkpoints
from harness.views.report.page import render_report
from harness.views.runs import runs_as_json
from harness.views.style import Style
from tests.support.sample_checkpoints import make
from tests.support.sample_run import head, step, tiny, write_run

LOSSES = {2: 3.0, 4: 2.0, 6: 2.0, 8: 1.0, 10: float("nan")}


def test_the_best_checkpoint_is_one_that_is_kept(tmp_path: Path) -> None:
    """The first of equals, of those that are there. In the list of runs too, which reads the ends of metrics.jsonl."""
    padding = [{"type": "note", "text": "x" * 1000}] * 300
    folder = write_run(tmp_path / "r", tiny(), [head(tiny()), step(1), *padding, step(10)])
    Evaluations({number: {"loss": loss} for number, loss in LOSSES.items()}).write(folder / "checkpoints")
    assert find_best_checkpoint(folder) is None
    for number in (2, 4, 6, 10):
        make(folder / "checkpoints", number)
    best = find_best_checkpoint(folder)
    assert best is not None
    assert (best.path, best.step, best.loss) == (folder / "checkpoints" / "step-00000004", 4, 2.0)
    rows, evaluations = read_rows(folder / "checkpoints"), Evaluations.read(folder / "checkpoints")
    table = render_checkpoints(folder, rows, evaluations, Style())
    assert [line.split()[0] for line in table.splitlines() if "(best)" in line] == ["step-00000004"]
    (listed,) = json.loads(runs_as_json(list_run_summaries(folder)))["runs"]
    assert listed["best_checkpoint"] == {"path": str(best.path), "step": 4, "loss": 2.0}
    assert "<dt>best checkpoint</dt><dd>step 4<small>loss 2.0000" in render_report([read_run_record(folder)])


def test_a_run_that_was_never_evaluated_has_no_best_checkpoint(tmp_path: Path) -> None:
    make(tmp_path / "checkpoints", 2)
    assert find_best_checkpoint(tmp_path) is None
