# SPDX-License-Identifier: Apache-2.0
"""The verdict on a run, from the statuses of its ranks. Needs nothing; milliseconds."""

import signal
from dataclasses import replace

import pytest

from harness.launching.supervise.run_verdict import RankExit, decide_verdict
from harness.run_records.rank_statuses import RankStatus


def status(rank, state, *, time=100.0, step=5, error=""):
    return RankStatus(rank, "node", 1000 + rank, state, step, time, error)


def by_rank(*statuses):
    return {s.rank: s for s in statuses}


def test_every_rank_completed_wins_over_an_abort_at_exit():
    verdict = decide_verdict(by_rank(status(0, "completed"), status(1, "completed")), 2, 250)
    assert (verdict.state, verdict.code) == ("completed", 0)
    assert "250" in verdict.notes[0]


@pytest.mark.parametrize(
    "statuses", [by_rank(), by_rank(status(0, "completed")), by_rank(status(0, "completed"), status(1, "running"))]
)
def test_a_launcher_that_ends_with_0_is_not_believed(statuses):
    verdict = decide_verdict(statuses, 2, 0)
    assert (verdict.state, verdict.code) == ("failed", 1)
    assert "of 2 ranks did not complete" in verdict.reason


def test_the_rank_that_failed_first_is_named_with_its_error():
    late = status(0, "failed", time=103.0, error="peer is gone")
    first = status(1, "failed", time=101.0, error="ValueError: no such file")
    verdict = decide_verdict(by_rank(late, first), 2, 3)
    assert (verdict.rank, verdict.code, verdict.reason) == (1, 3, "ValueError: no such file")


def test_a_rank_that_failed_by_its_own_error_is_not_reported_as_stopped_by_sigterm():
    first = status(0, "failed", error="the checkpoint of step 4 could not be saved")
    verdict = decide_verdict(by_rank(first, status(1, "running")), 2, 256 - signal.SIGTERM)
    assert (verdict.state, verdict.rank, verdict.code) == ("failed", 0, 1)


def test_a_rank_killed_by_the_kernel_is_blamed_before_its_peers_who_lost_it():
    peer = status(0, "failed", time=100.2, error="Connection closed by peer")
    verdict = decide_verdict(by_rank(peer, status(1, "running")), 2, 247, [RankExit(1, 1001, 100.4, signal.SIGKILL)])
    assert (verdict.rank, verdict.code) == (1, 137)
    assert "SIGKILL" in verdict.reason
    assert (verdict.signal, verdict.cause) == ("SIGKILL", "LG003")


@pytest.mark.parametrize(
    ("ran_out", "cause", "reason"),
    [
        (True, "LG002", "killed by SIGKILL of the kernel's out-of-memory killer"),
        (False, "LG006", "killed by SIGKILL, which a process sent: the kernel had not run out of memory"),
        (None, "LG003", "killed by SIGKILL, as the kernel does when memory runs out"),
    ],
)
def test_who_sent_the_signal_that_killed_a_rank(ran_out, cause, reason):
    killed = RankExit(1, 1001, 100.4, signal.SIGKILL, ran_out_of_memory=ran_out)
    verdict = decide_verdict(by_rank(status(0, "running"), status(1, "running")), 2, 247, [killed])
    assert (verdict.rank, verdict.signal, verdict.cause, verdict.reason) == (1, "SIGKILL", cause, reason)


def test_an_error_comes_before_one_that_lost_a_peer_whatever_the_clocks_say():
    behind = status(0, "failed", time=90.0, error="RuntimeError: Connection reset by peer")
    verdict = decide_verdict(by_rank(behind, status(1, "failed", time=101.0, error="ValueError: boom")), 2, 1)
    assert (verdict.rank, verdict.reason) == (1, "ValueError: boom")


def test_the_launcher_tells_the_signal_of_a_rank_that_was_reaped_before_anybody_looked():
    peer = status(0, "failed", time=100.0, error="Connection reset by peer")
    verdict = decide_verdict(by_rank(peer, status(1, "running")), 2, 247, [RankExit(1, 1001, 102.0, None)])
    assert (verdict.rank, verdict.code) == (1, 137)


def test_a_rank_that_the_launcher_ended_is_not_blamed():
    first = status(0, "failed", time=100.0, error="boom")
    verdict = decide_verdict(by_rank(first, status(1, "running")), 2, 1, [RankExit(1, 1001, 100.5, signal.SIGTERM)])
    assert (verdict.rank, verdict.reason) == (0, "boom")


def test_ranks_that_die_with_the_launch_process_are_not_blamed_either():
    deaths = [RankExit(0, 1000, 100.0, signal.SIGKILL), RankExit(1, 1001, 100.0, signal.SIGKILL)]
    verdict = decide_verdict(by_rank(status(0, "running"), status(1, "running")), 2, 0, deaths)
    assert (verdict.rank, verdict.code) == (None, 1)
    assert "launch process" in verdict.reason


def test_a_launcher_of_several_hosts_that_was_ended_itself_hides_no_killed_rank():
    peer = status(0, "failed", time=100.2, error="Connection closed by peer")
    deaths = [RankExit(1, 1001, 100.4, signal.SIGKILL)]
    verdict = decide_verdict(by_rank(peer, status(1, "running")), 2, 0, deaths, starts_remote_ranks=True)
    assert (verdict.rank, verdict.code, verdict.signal) == (1, 137, "SIGKILL")


@pytest.mark.parametrize(
    ("launcher", "code"), [(-9, 137), (-15, 143), (247, 137), (245, 139), (7, 7), (0, 1), (200, 200), (255, 255)]
)
def test_exit_codes_are_those_of_a_shell(launcher, code):
    assert decide_verdict(by_rank(status(0, "starting")), 2, launcher).code == code


@pytest.mark.parametrize(("launcher", "here", "noted"), [(-15, True, 0), (247, True, 0), (-15, False, 1), (1, True, 1)])
def test_a_launcher_that_this_side_ended_after_the_run_is_no_note(launcher, here, noted):
    done = by_rank(status(0, "completed"), status(1, "completed"))
    verdict = decide_verdict(done, 2, launcher, launcher_ended_here=here)
    assert (verdict.code, len(verdict.notes)) == (0, noted)


def test_a_stop_that_was_asked_for_is_no_failure():
    stopped = by_rank(status(0, "stopped"), status(1, "stopped"))
    assert decide_verdict(stopped, 2, 0, stopped_by=signal.SIGINT).code == 130
    assert decide_verdict(stopped, 2, 0, stopped_by=signal.SIGTERM).code == 143
    assert decide_verdict(stopped, 2, 0).state == "stopped"
    killed = decide_verdict(by_rank(status(0, "stopped"), status(1, "running")), 2, -9, stopped_by=signal.SIGINT)
    assert (killed.state, killed.reason) == ("stopped", "1 of 2 ranks were killed")


def test_a_failure_while_stopping_is_no_clean_stop():
    full = by_rank(status(0, "failed", error="No space left"), status(1, "running"))
    verdict = decide_verdict(full, 2, 1, stopped_by=signal.SIGTERM)
    assert (verdict.state, verdict.rank, verdict.reason, verdict.code) == ("failed", 0, "No space left", 1)
    assert "SIGTERM" in verdict.notes[0]
    verdict = decide_verdict(full, 2, -9, stopped_by=signal.SIGTERM, ranks_killed=True)
    assert (verdict.state, verdict.code) == ("stopped", 143)
    assert verdict.reason == "1 of 2 ranks were killed; rank 0 failed: No space left"


UPLOAD = {"not_uploaded": "its upload had not ended", "upload_command": "harness checkpoint upload a s3://b/p"}


def waiting(rank, outcome="completed", state="running", phase="upload", **upload):
    return replace(status(rank, state), phase=phase, outcome=outcome, **(upload or UPLOAD))


@pytest.mark.parametrize(
    ("statuses", "exits", "stopped_by", "why"),
    [
        ([waiting(0), waiting(1)], [], signal.SIGINT, "it was interrupted by SIGINT"),
        ([waiting(0), waiting(1)], [RankExit(1, 1001, 100.4, signal.SIGKILL)], None, "rank 1 was killed by SIGKILL"),
        ([waiting(0, state="failed"), waiting(1)], [], None, "its upload had not ended"),
        (
            [replace(waiting(0, state="failed"), error="RuntimeError: a remote worker crashed"), waiting(1)],
            [],
            None,
            "rank 1 ended without a word while it uploaded",
        ),
        (
            [waiting(0, state="completed", phase="end"), waiting(1, state="completed", phase="end")],
            [],
            None,
            "not ended",
        ),
    ],
)
def test_a_run_that_ends_in_its_last_upload_has_trained_and_saved(statuses, exits, stopped_by, why):
    killed = statuses[0].state == "running"
    verdict = decide_verdict(by_rank(*statuses), 2, 247 if killed else 0, exits, stopped_by, ranks_killed=killed)
    assert (verdict.state, verdict.code) == ("completed", 8)
    assert verdict.reason.startswith("trained and saved, not uploaded: ")
    assert why in verdict.reason
    assert verdict.notes == ("to upload it later: harness checkpoint upload a s3://b/p",)


def test_a_stopped_run_keeps_its_code_and_says_what_is_not_uploaded():
    verdict = decide_verdict(
        by_rank(waiting(0, "stopped"), waiting(1, "stopped")), 2, 247, (), signal.SIGTERM, ranks_killed=True
    )
    assert (verdict.state, verdict.code) == ("stopped", 143)
    assert verdict.reason == "every rank finished its step; saved, not uploaded: it was interrupted by SIGTERM"


def test_a_run_without_anything_to_upload_completes():
    ended = [replace(status(rank, "running"), phase="upload", outcome="completed") for rank in (0, 1)]
    assert decide_verdict(by_rank(*ended), 2, 247, (), signal.SIGINT, ranks_killed=True).code == 0


def test_a_rank_that_is_killed_while_it_saves_has_not_saved():
    statuses = by_rank(*(waiting(rank, phase="save", not_uploaded="") for rank in (0, 1)))
    verdict = decide_verdict(statuses, 2, 247, (), signal.SIGINT, ranks_killed=True)
    assert verdict.reason == "2 of 2 ranks were killed"


def test_a_rank_that_failed_with_an_error_was_not_terminated_by_a_signal():
    failed = status(0, "failed", error="the prefix is in use")
    assert decide_verdict(by_rank(failed, status(1, "failed", time=101.0)), 2, 256 - signal.SIGTERM).code == 1
    assert decide_verdict(by_rank(failed, status(1, "failed", time=101.0)), 2, -signal.SIGTERM).code == 1
