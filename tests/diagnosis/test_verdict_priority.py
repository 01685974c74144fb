# SPDX-License-Identifier: Apache-2.0
"""The supervisor's verdict comes before the log. Needs nothing; milliseconds."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.run_diagnosis import diagnose_run
from harness.locks import Lock
from harness.run_records.run_list import list_run_summaries
from harness.run_records.run_record import read_run_record
from harness.verdicts import Verdict, describe_verdict
from harness.views.log_diagnosis import diagnosis_as_dict, render_diagnosis
from harness.views.report.page import render_report
from harness.views.runs import render_runs
from harness.views.style import Style
from tests.support.sample_run import KILLED, RESET, SURVIVOR, head, lost_a_rank, step, tiny, write_run

BOOM = "ValueError: boom at step 3"
CRASHED = f"""\
{SURVIVOR}\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 7, in step
[rank1]:     raise ValueError
[rank1]: {BOOM}
"""


def diagnose_text(verdict: Verdict | None, text: str = SURVIVOR) -> Diagnosis:
    return diagnose([io.BytesIO(text.encode())], verdict=verdict)


def test_a_run_directory_answers_with_its_verdict(tmp_path):
    diagnosis = diagnose_run(lost_a_rank(tmp_path / "r"))
    assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", "LG003", "certain")
    assert (diagnosis.rank, diagnosis.host, diagnosis.message) == (1, "node1", "killed by SIGKILL")
    assert "verdict.json" in diagnosis.notes[0]
    assert any("followed from it" in note for note in diagnosis.notes)
    assert RESET in dict(diagnosis.lines).values()


def test_a_run_that_is_still_running(tmp_path):
    folder = write_run(tmp_path / "r", tiny(), [head(tiny()), step(1)], ("running",))
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "launcher.log").write_text("step 1/30\n")
    lock = Lock.acquire(folder / "lock", "a test")
    shown = render_diagnosis(diagnose_run(folder), Style())
    lock.release()
    assert "the run is still running, and its log shows no failure so far" in shown
    assert "still running" not in render_diagnosis(diagnose_run(folder), Style())


def test_the_first_line_is_that_of_the_verdict(tmp_path):
    """The same words as on the terminal, in the list of runs and in the report; no line says it twice."""
    folder = lost_a_rank(tmp_path / "r")
    text = render_diagnosis(diagnose_run(folder), Style())
    assert text.splitlines()[0] == describe_verdict(KILLED) == "failed on rank 1 (node1) at step 24: killed by SIGKILL"
    assert text.count("killed by SIGKILL") == 1
    assert "  cause      LG003, certain: a rank was killed from outside" in text
    body = diagnosis_as_dict(diagnose_run(folder))
    assert (body["rank"], body["host"], body["signal"], body["step"]) == (1, "node1", "SIGKILL", 24)
    (run,) = list_run_summaries(folder)
    assert f"r: {describe_verdict(KILLED)}" in render_runs("runs", [run], Style())
    assert describe_verdict(KILLED).replace("failed", "<b>failed</b>", 1) in render_report([read_run_record(folder)])


def test_a_traceback_of_any_length_ends_with_its_last_frame():
    frames = "".join(f'[rank1]:   File "/x/site-packages/a.py", line {i}, in f\n[rank1]:     f()\n' for i in range(90))
    log = CRASHED.replace('[rank1]:   File "train.py"', frames + '[rank1]:   File "train.py"')
    diagnosis = diagnose_text(Verdict("failed", 1, BOOM, 1, crashed=True), log)
    assert (diagnosis.where, diagnosis.rank) == ("train.py:7 in step", 1)


def test_without_one_the_log_is_all_there_is(tmp_path):
    diagnosis = diagnose_run(lost_a_rank(tmp_path / "r", None))
    assert (diagnosis.cause, diagnosis.rank) == ("LG073", None)


def test_a_cause_of_the_same_rank_says_more_than_its_signal():
    aborted = Verdict("failed", 134, "killed by SIGABRT", 1, signal="SIGABRT")
    log = SURVIVOR + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    diagnosis = diagnose_text(aborted, log)
    assert (diagnosis.cause, diagnosis.rank) == ("LG001", 1)
    diagnosis = diagnose_text(aborted)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.title, diagnosis.confidence) == (
        "",
        1,
        "killed by SIGABRT",
        "unknown",
    )


@pytest.mark.parametrize("reason", [BOOM, f"{BOOM}\nmore"])
def test_the_error_of_the_rank_that_failed_first_is_found_in_the_log(reason):
    diagnosis = diagnose_text(Verdict("failed", 1, reason, 1, crashed=True), CRASHED)
    assert (diagnosis.rank, diagnosis.message, diagnosis.where) == (1, BOOM, "train.py:7 in step")


def test_who_lost_a_peer_does_not_say_whom():
    diagnosis = diagnose_text(Verdict("failed", 1, RESET, 0, crashed=True), CRASHED)
    assert (diagnosis.rank, diagnosis.message) == (1, BOOM)


@pytest.mark.parametrize("cause", ["LG076", "LG077"])
def test_a_hang_and_a_host_that_was_cut_off(cause):
    diagnosis = diagnose_text(Verdict("failed", 124, "hung in a step", 1, "node1", cause=cause), CRASHED)
    assert (diagnosis.cause, diagnosis.rank, diagnosis.host, diagnosis.message) == (cause, 1, "node1", "hung in a step")


def test_a_run_that_did_not_fail():
    assert diagnose_text(Verdict("completed", 0)).state == "completed"
    stopped = diagnose_text(Verdict("stopped", 143, "1 of 2 ranks were killed", step=24, signal="SIGTERM"))
    assert (stopped.state, stopped.verdict.signal, stopped.verdict.step) == ("stopped", "SIGTERM", 24)
    first = render_diagnosis(stopped, Style()).splitlines()[0]
    assert first == "stopped by SIGTERM at step 24: 1 of 2 ranks were killed"


def test_a_log_without_a_word():
    diagnosis = diagnose_text(KILLED, "")
    assert (diagnosis.cause, diagnosis.rank, diagnosis.lines) == ("LG003", 1, ())


def test_where_no_rank_is_named_the_log_decides():
    diagnosis = diagnose_text(
        Verdict("failed", 1, "the launcher ended with code 1, 2 of 2 ranks did not complete"), CRASHED
    )
    assert (diagnosis.rank, diagnosis.message) == (1, BOOM)


def test_a_host_that_the_log_names_is_not_replaced_by_that_of_the_verdict():
    """The kernel of node2 reports its GPU; the rank that ended first lost its peer, on a host that is healthy."""
    lost = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    log = f"node2: NVRM: Xid (PCI:0000:41:00): 79, pid=812, GPU has fallen off the bus.\nnode1: [rank0]: {lost}\n"
    diagnosis = diagnose_text(Verdict("failed", 1, lost, rank=0, host="node1", crashed=True), log)
    assert (diagnosis.cause, diagnosis.host) == ("LG016", "node2")
