"""The diagnosis of run directories, and what is said of it. Needs nothing; seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import eventful, head, on_gpus, step, tiny, write_run

from harness.plan.plan import make_plan
from harness.records.record import read_record
from harness.slowness import diagnose
from harness.slowness.trial import predict
from harness.views.report.why_slow import why_slow
from harness.views.slowness import prediction_words, summary_lines


def test_a_run_on_gpus(tmp_path: Path) -> None:
    diagnosis = diagnose(read_record(eventful(tmp_path / "r", 60)))
    assert [told.slow.name for told in diagnosis.causes] == ["cpu-optimizer", "communication"]
    first, second = summary_lines(diagnosis)
    assert first == "the optimizer on the CPU: 33% of the step"
    assert second.startswith("try without `zero.offload_optimizer`; the plan: a step of 4.6 s becomes 3.6 s (-22%)")
    html = why_slow(read_record(tmp_path / "r"))
    assert "The optimizer on the CPU: 33% of the step" in html
    assert "<code>zero.offload_optimizer</code>" in html


def test_a_run_on_the_cpu_has_no_planned_time_and_says_so(tmp_path: Path) -> None:
    rows = [step(n, 1.0, {"optimizer": 0.5, "forward": 0.2, "backward": 0.25}) for n in range(1, 6)]
    diagnosis = diagnose(read_record(write_run(tmp_path / "r", tiny(), [head(tiny()), *rows])))
    (told,) = diagnosis.causes
    assert told.slow.name == "cpu-optimizer"
    assert told.settings
    assert all("no time is planned for this device" in prediction_words(p) for _, p in told.settings)


@pytest.mark.parametrize(
    "lines", [None, [], [{"type": "step", "step": 1}], [{"type": "step", "step": 1, "seconds": 0}]]
)
def test_a_run_that_says_nothing_is_not_diagnosed(tmp_path: Path, lines: list[dict[str, object]] | None) -> None:
    record = read_record(write_run(tmp_path / "r", tiny(), lines))
    assert diagnose(record).causes == ()
    assert why_slow(record) == ""


def test_a_run_whose_spec_cannot_be_read_is_diagnosed_by_its_numbers(tmp_path: Path) -> None:
    rows = [step(n, shares={"data": 0.5}) for n in range(1, 6)]
    record = read_record(write_run(tmp_path / "r", tiny(), rows, files={"spec.resolved.json": "{"}))
    assert [told.slow.name for told in diagnose(record).causes] == ["data"]
    assert "Waiting for data: 50% of the step" in why_slow(record)


def test_what_the_gates_refuse_is_not_planned() -> None:
    plan = make_plan(on_gpus())
    refused = predict(plan, {"zero.stage": 2, "zero.offload_param": {"device": "cpu"}}, None, None)
    assert refused.after is None
    assert refused.refused is not None
    assert refused.gain is None
    wrong = predict(plan, {"zero.stage": 7}, None, None)
    assert wrong.refused is not None


def test_a_removed_key_is_back_at_its_default() -> None:
    plan = make_plan(on_gpus())
    after = predict(plan, {"zero.offload_optimizer": None, "train.nothing.at.all": None}, None, None).after
    assert after is not None
    assert after.run.spec.zero.offload_optimizer is None
    assert plan.run.spec.zero.offload_optimizer is not None
