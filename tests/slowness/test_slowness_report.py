# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of run directories, and its texts. Needs nothing; seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.plan.planner import make_plan
from harness.run_records.run_record import read_run_record
from harness.slowness import diagnose_slowness
from harness.slowness.plan_prediction import predict_plan
from harness.views.report.run_sections import render_slowness
from harness.views.slowness_text import format_prediction, summary_lines
from tests.support.sample_run import eventful, head, on_gpus, step, tiny, write_run


def test_a_run_on_gpus(tmp_path: Path) -> None:
    diagnosis = diagnose_slowness(read_run_record(eventful(tmp_path / "r", 60)))
    assert [report.slowdown.name for report in diagnosis.slowdowns] == ["cpu-optimizer", "communication"]
    first, second = summary_lines(diagnosis)
    assert first == "the optimizer on the CPU: 33% of the step"
    assert second.startswith("try without `zero.offload_optimizer`; the plan: a step of 6.9 s becomes 3.8 s (-45%)")
    html = render_slowness(read_run_record(tmp_path / "r"))
    assert "The optimizer on the CPU: 33% of the step" in html
    assert "<code>zero.offload_optimizer</code>" in html


def test_a_run_on_the_cpu_has_no_planned_time_and_says_so(tmp_path: Path) -> None:
    rows = [step(n, 1.0, {"optimizer": 0.5, "forward": 0.2, "backward": 0.25}) for n in range(1, 6)]
    diagnosis = diagnose_slowness(read_run_record(write_run(tmp_path / "r", tiny(), [head(tiny()), *rows])))
    (report,) = diagnosis.slowdowns
    assert report.slowdown.name == "cpu-optimizer"
    assert report.settings
    assert all("the plan: no time for this device" in format_prediction(p) for _, p in report.settings)


@pytest.mark.parametrize(
    "lines", [None, [], [{"type": "step", "step": 1}], [{"type": "step", "step": 1, "seconds": 0}]]
)
def test_a_run_that_says_nothing_is_not_diagnosed(tmp_path: Path, lines: list[dict[str, object]] | None) -> None:
    record = read_run_record(write_run(tmp_path / "r", tiny(), lines))
    assert diagnose_slowness(record).slowdowns == ()
    assert render_slowness(record) == ""


def test_a_run_whose_spec_cannot_be_read_is_diagnosed_by_its_numbers(tmp_path: Path) -> None:
    rows = [step(n, shares={"data": 0.5}) for n in range(1, 6)]
    record = read_run_record(write_run(tmp_path / "r", tiny(), rows, files={"spec.resolved.json": "{"}))
    assert [report.slowdown.name for report in diagnose_slowness(record).slowdowns] == ["data"]
    assert "Waiting for data: 50% of the step" in render_slowness(record)


def test_what_the_gates_refuse_is_not_planned() -> None:
    plan = make_plan(on_gpus())
    refused = predict_plan(plan, {"zero.stage": 2, "zero.offload_param": {"device": "cpu"}}, None, None)
    assert refused.after is None
    assert refused.blocking_finding is not None
    assert refused.gain is None
    wrong = predict_plan(plan, {"zero.stage": 7}, None, None)
    assert wrong.blocking_finding is not None


def test_a_removed_key_is_back_at_its_default() -> None:
    plan = make_plan(on_gpus())
    after = predict_plan(plan, {"zero.offload_optimizer": None, "train.nothing.at.all": None}, None, None).after
    assert after is not None
    assert after.run.spec.zero.offload_optimizer is None
    assert plan.run.spec.zero.offload_optimizer is not None
