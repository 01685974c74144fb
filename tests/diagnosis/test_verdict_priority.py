"""What the supervisor saw comes before what the log says. Needs nothing; milliseconds."""

from __future__ import annotations

import io

import pytest
from sample_run import KILLED, RESET, SURVIVOR, lost_a_rank

from harness.diagnosis import diagnose
from harness.diagnosis.diagnosis_types import Diagnosis
from harness.launching.supervise.run_diagnosis import diagnose_run
from harness.verdicts import Verdict

BOOM = "ValueError: boom at step 3"
CRASHED = f"""\
{SURVIVOR}\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 7, in step
[rank1]:     raise ValueError
[rank1]: {BOOM}
"""


def told(verdict: Verdict | None, text: str = SURVIVOR) -> Diagnosis:
    return diagnose([io.BytesIO(text.encode())], verdict=verdict)


def test_a_run_directory_answers_with_its_verdict(tmp_path):
    found = diagnose_run(lost_a_rank(tmp_path / "r"))
    assert (found.state, found.cause, found.confidence) == ("failed", "LG003", "certain")
    assert (found.rank, found.host, found.message) == (1, "node1", "killed by SIGKILL")
    assert "verdict.json" in found.notes[0]
    assert any("came of it" in note for note in found.notes)
    assert RESET in dict(found.lines).values()


def test_without_one_the_log_is_all_there_is(tmp_path):
    found = diagnose_run(lost_a_rank(tmp_path / "r", None))
    assert (found.cause, found.rank) == ("LG073", None)


def test_a_cause_of_the_same_rank_says_more_than_its_signal():
    aborted = Verdict("failed", 134, "killed by SIGABRT", 1, signal="SIGABRT")
    log = SURVIVOR + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = told(aborted, log)
    assert (found.cause, found.rank) == ("LG001", 1)
    found = told(aborted)
    assert (found.cause, found.rank, found.title, found.confidence) == ("", 1, "killed by SIGABRT", "unknown")


@pytest.mark.parametrize("reason", [BOOM, f"{BOOM}\nmore"])
def test_the_error_of_the_rank_that_failed_first_is_found_in_the_log(reason):
    found = told(Verdict("failed", 1, reason, 1, crashed=True), CRASHED)
    assert (found.rank, found.message, found.where) == (1, BOOM, "train.py:7 in step")


def test_who_lost_a_peer_does_not_say_whom():
    found = told(Verdict("failed", 1, RESET, 0, crashed=True), CRASHED)
    assert (found.rank, found.message) == (1, BOOM)


@pytest.mark.parametrize("cause", ["LG076", "LG077"])
def test_a_hang_and_a_host_that_was_cut_off(cause):
    found = told(Verdict("failed", 124, "hung in a step", 1, "node1", cause=cause), CRASHED)
    assert (found.cause, found.rank, found.host, found.message) == (cause, 1, "node1", "hung in a step")


def test_a_run_that_did_not_fail():
    assert told(Verdict("completed", 0)).state == "completed"
    stopped = told(Verdict("stopped", 143, "1 of 2 ranks were killed", step=24, signal="SIGTERM"))
    assert (stopped.state, stopped.title) == ("stopped", "the job was stopped by SIGTERM after step 24")


def test_a_log_without_a_word():
    found = told(KILLED, "")
    assert (found.cause, found.rank, found.lines) == ("LG003", 1, ())


def test_where_no_rank_is_named_the_log_decides():
    found = told(Verdict("failed", 1, "the launcher ended with code 1, 2 of 2 ranks did not complete"), CRASHED)
    assert (found.rank, found.message) == (1, BOOM)
