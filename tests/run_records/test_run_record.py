# SPDX-License-Identifier: Apache-2.0
"""Run directories read back, in every state. Needs nothing; a second."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.locks import Lock
from harness.run_records.run_files import drop_lost_steps
from harness.run_records.run_record import read_run_record
from harness.run_records.summary import summarise_run, time_parts
from harness.verdicts import Verdict, write_verdict
from tests.support.sample_run import BEGAN, KILLED, eventful, head, lost_a_rank, save, step, tiny, write_run


def test_what_was_lost_and_taken_again_is_there_once() -> None:
    lines = [{"type": "step", "step": n, "loss": 1.0} for n in (1, 2, 3)]
    again = [{"type": "restart", "step": 1}, *({"type": "step", "step": n, "loss": 2.0} for n in (2, 3, 4))]
    kept, lost = drop_lost_steps((*lines, *again))
    assert [(line["step"], line.get("loss")) for line in kept if line["type"] == "step"] == [
        (1, 1),
        (2, 2),
        (3, 2),
        (4, 2),
    ]
    assert lost == 2


@pytest.mark.parametrize("between", [[], [{"type": "run", "start_step": 1}]], ids=["nothing said", "a second start"])
def test_a_restart_that_nobody_wrote_down_is_seen_by_its_steps(between: list[dict[str, object]]) -> None:
    first = [{"type": "step", "step": n, "loss": 1.0} for n in (1, 2, 3)]
    evals = [{"type": "eval", "step": 3, "loss": 9.0}, {"type": "save", "step": 3}]
    kept, lost = drop_lost_steps(
        (*first, *evals, *between, *({"type": "step", "step": n, "loss": 2.0} for n in (2, 3)))
    )
    assert [line["loss"] for line in kept if line["type"] == "step"] == [1, 2, 2]
    assert [line["type"] for line in kept if line["type"] in ("eval", "save")] == [
        "save"
    ]  # the file was really written
    assert lost == 2


def test_garbage_is_counted_and_costs_nothing_else(tmp_path: Path) -> None:
    lines = [head(tiny()), step(1), step(2)]
    tail = (
        'null\n[1]\n"step"\n\x00\xff\n{"type": ["step"], "step": {}}\n{"type": "step", "step": "x", "loss": "y"}\n{"typ'
    )
    record = read_run_record(write_run(tmp_path / "r", tiny(), lines, tail=tail))
    assert record.unread_lines == 5
    assert [x for x, _ in record.points("step", "loss")] == [1, 2]
    assert summarise_run(record).step == 3  # of a rank's status


@pytest.mark.parametrize("value", [10**400, float("inf"), "1e5", True, None, [], {}])
def test_figures_that_are_none(tmp_path: Path, value: object) -> None:
    record = read_run_record(write_run(tmp_path / "r", tiny(), [step(1, tokens_per_second=value, loss=value)]))
    assert record.points("step", "loss") == []
    assert summarise_run(record).tokens_per_second is None


def test_the_first_step_of_each_start_is_not_typical(tmp_path: Path) -> None:
    record = read_run_record(eventful(tmp_path / "r", 60))
    assert len(record.values("seconds")) == 60 - 2
    assert summarise_run(record).lost == 10
    assert summarise_run(record).attempts == 2
    alone = read_run_record(write_run(tmp_path / "one", tiny(), [head(tiny()), step(1)]))
    assert len(alone.values("seconds")) == 1


def test_a_run_whose_directory_is_held_is_running(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", tiny(), [head(tiny()), step(1)], ("running",))
    assert read_run_record(folder).state == "broken off"
    lock = Lock.acquire(folder / "lock", "a test")
    assert read_run_record(folder).state == "running"
    lock.release()
    assert read_run_record(folder).state == "broken off"


def test_the_ends_of_a_long_run_are_enough_for_a_list(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", tiny(), [head(tiny()), *(step(n) for n in range(1, 2001)), save(2000)])
    whole, brief = summarise_run(read_run_record(folder)), summarise_run(read_run_record(folder, brief=True))
    assert (folder / "metrics.jsonl").stat().st_size > 2 * (1 << 17)
    for name in ("step", "steps", "loss", "first_loss", "tokens", "attempts", "started", "checkpoint", "state"):
        assert getattr(whole, name) == getattr(brief, name), name
    assert brief.tokens_per_second == pytest.approx(whole.tokens_per_second, rel=0.02)


def test_when_it_was_started_comes_from_the_best_source(tmp_path: Path) -> None:
    assert summarise_run(read_run_record(eventful(tmp_path / "a", 60))).started == BEGAN
    launched = eventful(tmp_path / "b", 60)
    os.utime(launched / "spec.resolved.json", (BEGAN - 240, BEGAN - 240))  # four minutes of compiling
    assert summarise_run(read_run_record(launched)).started == BEGAN - 240
    os.utime(launched / "spec.resolved.json", (BEGAN + 86400, BEGAN + 86400))  # a copy
    assert summarise_run(read_run_record(launched)).started == BEGAN
    old = write_run(tmp_path / "x-20260102-030405", tiny(), [{"type": "step", "step": 1}])
    started = summarise_run(read_run_record(old)).started
    assert started is not None
    assert abs(started - 1_767_323_045) < 15 * 3600  # local time
    empty = tmp_path / "empty"
    empty.mkdir()
    assert summarise_run(read_run_record(empty)).started is None


def test_points_under_several_keys(tmp_path: Path) -> None:
    lines = [json.loads('{"type": "step", "step": 1, "a": 5}'), {"type": "step", "step": 2, "b": 7, "a": 6}]
    record = read_run_record(write_run(tmp_path / "r", tiny(), lines))
    assert record.points("step", "b", "a") == [(1, 5), (2, 7)]
    assert record.points("step", "c", "a") == [(1, 5), (2, 6)]
    assert record.points("nothing", "a") == []


def test_the_verdict_comes_before_what_the_ranks_say(tmp_path: Path) -> None:
    folder = lost_a_rank(tmp_path / "r")
    record = read_run_record(folder)
    assert (record.verdict, record.state, summarise_run(record).verdict) == (KILLED, "failed", KILLED)
    for state in ("stopped", "completed"):
        write_verdict(folder, Verdict(state, 0, step=40))  # type: ignore[arg-type]
        assert read_run_record(folder, brief=True).state == state
        assert summarise_run(read_run_record(folder)).step == 40
    lock = Lock.acquire(folder / "lock")
    assert read_run_record(folder).state == "running"
    lock.release()


def test_without_a_verdict_the_ranks_are_believed(tmp_path: Path) -> None:
    folder = lost_a_rank(tmp_path / "r", None)
    assert (read_run_record(folder).verdict, read_run_record(folder).state) == (None, "failed")
    (folder / "verdict.json").write_text("{")
    assert read_run_record(folder).state == "failed"


def test_the_time_of_a_run_is_that_of_its_launch(tmp_path: Path) -> None:
    """With its verdict; the parts add up, also over a restart, whose pause is outside of the loop."""
    folder = eventful(tmp_path / "r", 60)
    before = summarise_run(read_run_record(folder)).seconds
    assert time_parts(read_run_record(folder)) == ""
    write_verdict(folder, Verdict("completed", 0, step=60, seconds=1000.0))
    record = read_run_record(folder)
    assert summarise_run(record).seconds == 1000.0 != before
    # 180 s from the first header to the end of the ranks, with the steps that were lost; 62 s from the second header.
    assert record.lost > 0
    assert time_parts(record) == "4 min 02 s in the training loop, 12 min 38 s before and after it, in 2 attempts"
