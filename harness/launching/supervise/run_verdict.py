# SPDX-License-Identifier: Apache-2.0
"""The verdict on a run, decided from the statuses of the ranks; the launcher's exit code only fills gaps.

DeepSpeed's launcher ends with 0 when its own child was killed, and an exit-time abort can follow a completed training:
neither is trusted. Starts and stops nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import ExitCode
from harness.launching.process.signals import parse_signal_name
from harness.run_records.rank_statuses import FINAL_STATES, RankStatus
from harness.verdicts import Verdict

_PEER_GONE = re.compile(r"connection (closed|reset) by peer|broken pipe|remote process exited|ncclRemoteError", re.I)
_PEER_REPORT_SECONDS = 3.0
"""Tolerance in seconds: clocks and polling may date a lost rank later than the errors of its peers."""
_ROOT_CAUSE_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""Signals that no launcher or peer sends in the first second; SIGTERM and SIGABRT may be consequences."""
_CODES_OF_OWN_SIGNALS = {-signal.SIGTERM, -signal.SIGKILL, 256 - signal.SIGKILL}
"""Of a launcher that the supervisor ends, or whose ranks it ends."""
_NAMED_SIGNALS = frozenset(map(int, signal.Signals))
_CAUSE_OF_SIGNAL: Mapping[int, str] = {
    signal.SIGSEGV: "LG018",
    signal.SIGBUS: "LG018",
    signal.SIGILL: "LG018",
    signal.SIGFPE: "LG018",
}
"""Pages of `harness explain` for a rank that such a signal ended."""
_SIGKILL_CAUSES = {True: "LG002", False: "LG006", None: "LG003"}
_SIGKILL_SENDERS = {
    True: " of the kernel's out-of-memory killer",
    False: ", which a process sent: the kernel had not run out of memory",
    None: ", as the kernel does when memory runs out",
}


@dataclass(frozen=True, slots=True)
class RankExit:
    """A rank whose process is gone without a final status."""

    rank: int
    pid: int
    time: float
    signum: int | None
    reported_by_launcher: bool = False
    """True if the launcher of its host reported the signal: this rank did not fail because of others."""
    ran_out_of_memory: bool | None = None
    """True if the kernel killed a process of its host for memory at that time; None where that is not known."""


def decide_verdict(
    statuses: Mapping[int, RankStatus],
    world_size: int,
    launcher_code: int,
    rank_exits: Sequence[RankExit] = (),
    stopped_by: int | None = None,
    *,
    ranks_killed: bool = False,
    stop_text: str = "",
    starts_remote_ranks: bool = False,
    launcher_ended_here: bool = False,
) -> Verdict:
    """The verdict on a run of `world_size` ranks whose launcher ended with `launcher_code` (negative: by that signal).

    `stopped_by` is the signal that stopped the harness; with `ranks_killed` it had to kill ranks. A rank that failed
    meanwhile, such as in saving, makes it a failure; with `ranks_killed` it may have failed for having lost its peers,
    and the stop only names it. `stop_text` is the text of the file `stop`, for a run that a rank or the launcher was
    signalled to stop. A rank that was still uploading has trained to its end: what it had not uploaded is in the
    verdict, with the exit code NOT_UPLOADED for a run that completed. `launcher_ended_here`: this side's signals ended
    the launcher and its ranks, so that a code of these says nothing of a run that had completed.
    """
    statuses, upload = _end_of_training(statuses, rank_exits, stopped_by)
    verdict = _decide(
        statuses,
        world_size,
        launcher_code,
        rank_exits,
        stopped_by,
        ranks_killed=ranks_killed,
        stop_text=stop_text,
        starts_remote_ranks=starts_remote_ranks,
        launcher_ended_here=launcher_ended_here,
    )
    return verdict if upload is None or verdict.state == "failed" else _not_uploaded_verdict(verdict, upload)


def _end_of_training(
    statuses: Mapping[int, RankStatus], rank_exits: Sequence[RankExit], stopped_by: int | None
) -> tuple[Mapping[int, RankStatus], RankStatus | None]:
    """The statuses, where those that wait for an upload count as what their training was: completed or stopped. With
    them a status that says what is not uploaded; None if all is.
    """
    reason = f"it was interrupted by {signal.Signals(stopped_by).name}" if stopped_by is not None else ""
    killed = [rank_exit for rank_exit in rank_exits if rank_exit.signum is not None]
    if killed and not reason:
        reason = f"rank {killed[0].rank} was killed by {_signal_name(killed[0].signum or 0)} before its end"
    uploading = {
        rank
        for rank, status in statuses.items()
        if status.phase == "upload" and status.outcome and status.state not in {"completed", "stopped"}
    }
    silent = sorted(rank for rank in uploading if not statuses[rank].error)
    if silent and silent != sorted(uploading) and not reason:  # the errors of the others are that they lost it
        reason = f"rank {silent[0]} ended without a word while it uploaded"
    ended, upload = dict[int, RankStatus](), None
    for rank, status in sorted(statuses.items()):
        ended[rank] = status
        if rank in uploading:
            why = reason or status.error or status.not_uploaded
            ended[rank] = replace(status, state=status.outcome, not_uploaded=status.not_uploaded and why)
        upload = upload or (ended[rank] if ended[rank].not_uploaded else None)
    return ended, upload


def _not_uploaded_verdict(verdict: Verdict, upload: RankStatus) -> Verdict:
    """The verdict on a run whose newest checkpoint is not in the object store. One that was stopped keeps its code."""
    reason = f"saved, not uploaded: {upload.not_uploaded}"
    note = f"to upload it later: {upload.upload_command}"
    if verdict.state == "completed":
        return replace(
            verdict, code=ExitCode.NOT_UPLOADED, reason=f"trained and {reason}", notes=(*verdict.notes, note)
        )
    return replace(verdict, reason=f"{verdict.reason}; {reason}", notes=(*verdict.notes, note))


def _decide(
    statuses: Mapping[int, RankStatus],
    world_size: int,
    launcher_code: int,
    rank_exits: Sequence[RankExit],
    stopped_by: int | None,
    *,
    ranks_killed: bool,
    stop_text: str,
    starts_remote_ranks: bool,
    launcher_ended_here: bool,
) -> Verdict:
    step = max((s.step for s in statuses.values()), default=0)
    states = [statuses[rank].state if rank in statuses else "missing" for rank in range(world_size)]
    if all(state == "completed" for state in states):
        note = f"the launcher ended with code {launcher_code} after every rank had completed" if launcher_code else ""
        is_ours = launcher_ended_here and launcher_code in _CODES_OF_OWN_SIGNALS
        note = "" if is_ours or any(s.phase == "upload" for s in statuses.values()) else note  # it was ended there
        return Verdict("completed", ExitCode.OK, step=step, notes=(note,) if note else ())
    failed = any(state == "failed" for state in states)
    if stopped_by is not None and (ranks_killed or not failed):
        reason = _stop_reason(states) + _describe_failure_during_stop(statuses)
        return Verdict("stopped", 128 + stopped_by, reason, step=step, signal=signal.Signals(stopped_by).name)
    first = _find_first_failure(statuses, rank_exits, launcher_code)
    if first is None and all(state in {"completed", "stopped"} for state in states):
        return _stopped_verdict(stop_text, step)
    early = _stop_signal_of_exit_code(launcher_code)
    if first is None and early and "running" not in states:
        reason = f"a rank got {signal.Signals(early).name} before training began"
        return Verdict("stopped", 128 + early, reason, step=step, signal=signal.Signals(early).name)
    notes = (f"it was being stopped by {signal.Signals(stopped_by).name}",) if stopped_by is not None else ()
    return replace(
        _failure_verdict(first, statuses, states, launcher_code, starts_remote_ranks=starts_remote_ranks),
        step=step,
        notes=notes,
    )


def _stopped_verdict(stop_text: str, step: int) -> Verdict:
    """The verdict where every rank has stopped, though the harness got no signal."""
    signum = parse_signal_name(stop_text)
    if signum is None:
        return Verdict("stopped", ExitCode.INTERRUPTED, "the file `stop` was found", step=step)
    reason = f"every rank finished its step ({stop_text.strip()})"
    return Verdict("stopped", 128 + signum, reason, step=step, signal=signal.Signals(signum).name)


def _stop_signal_of_exit_code(launcher_code: int) -> int | None:
    """A signal that asks for a stop and that ended a rank, by the launcher's exit code of `256 - signal`."""
    signum = 256 - launcher_code
    return signum if signum in {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1} else None


def _failure_verdict(
    first: RankStatus | RankExit | None,
    statuses: Mapping[int, RankStatus],
    states: Sequence[str],
    launcher_code: int,
    *,
    starts_remote_ranks: bool,
) -> Verdict:
    if first is None:
        return _unexplained_failure_verdict(states, launcher_code)
    if isinstance(first, RankStatus):
        error = first.error or "it wrote no error"
        # The launcher ends the other ranks by SIGTERM, and may report that or end of it: this rank failed by itself.
        is_echo = launcher_code == -signal.SIGTERM or signal_of_exit_code(launcher_code) == signal.SIGTERM
        code = ExitCode.FINDINGS if is_echo else _to_exit_code(launcher_code)
        return Verdict("failed", code, error, first.rank, first.host, refused=first.refused, crashed=not first.refused)
    if first.signum == signal.SIGKILL and launcher_code == 0 and not starts_remote_ranks:
        # The launcher reports the death of a rank; it ends with 0 only when its own child was killed. With other hosts
        # it also does when pdsh was, as this side does to those that do not end by themselves.
        return Verdict("failed", ExitCode.FINDINGS, "DeepSpeed's launch process was killed, and its ranks with it")
    host = statuses[first.rank].host if first.rank in statuses else ""
    if first.signum is None:
        return Verdict("failed", _to_exit_code(launcher_code), "it ended without an error message", first.rank, host)
    name, cause = _signal_name(first.signum), _CAUSE_OF_SIGNAL.get(first.signum, "")
    hint = ""
    if first.signum == signal.SIGKILL:
        hint = _SIGKILL_SENDERS[first.ran_out_of_memory]
        cause = _SIGKILL_CAUSES[first.ran_out_of_memory]
    return Verdict("failed", 128 + first.signum, f"killed by {name}{hint}", first.rank, host, signal=name, cause=cause)


def _signal_name(signum: int) -> str:
    """`SIGKILL`; a real-time signal has no name."""
    return signal.Signals(signum).name if signum in _NAMED_SIGNALS else f"signal {signum}"


def _find_first_failure(
    statuses: Mapping[int, RankStatus], rank_exits: Sequence[RankExit], launcher_code: int
) -> RankStatus | RankExit | None:
    """A rank that was killed comes before peers that failed for having lost it, though their errors may come first.

    The launcher's code proves a killed rank (`256 - signal`); a zombie has its signal until it is reaped.
    """
    launcher_signal = signal_of_exit_code(launcher_code)
    silent = [e for e in rank_exits if e.rank not in statuses or not statuses[e.rank].is_final]
    silent = [replace(e, signum=launcher_signal) if e.signum is None else e for e in silent]
    failed = min(
        (s for s in statuses.values() if s.state == "failed"),
        key=lambda s: (is_lost_peer_error(s.error), s.time),  # the clocks of hosts may differ
        default=None,
    )
    killed = min((e for e in silent if e.signum in _ROOT_CAUSE_SIGNALS), key=lambda e: e.time, default=None)
    if killed and (
        failed is None
        or killed.reported_by_launcher
        or killed.signum == launcher_signal
        or killed.time <= failed.time + 1.0
    ):
        return killed
    lost = min((e for e in silent if e.signum != signal.SIGTERM), key=lambda e: e.time, default=None)
    if failed and lost and is_lost_peer_error(failed.error) and lost.time <= failed.time + _PEER_REPORT_SECONDS:
        return killed or lost  # a rank that reports a lost peer is not the lost one
    return failed or killed or lost


def is_lost_peer_error(error: str) -> bool:
    """True if a rank failed because the connection to another one broke."""
    return bool(_PEER_GONE.search(error))


def signal_of_exit_code(launcher_code: int) -> int | None:
    """The signal that ended a rank, when DeepSpeed's launcher ends with `256 - signal`."""
    signum = 256 - launcher_code
    return signum if signum in _ROOT_CAUSE_SIGNALS | {signal.SIGABRT, signal.SIGTERM} else None


def _unexplained_failure_verdict(states: Sequence[str], launcher_code: int) -> Verdict:
    count = sum(state not in {"completed", "stopped"} for state in states)
    ending = f"ended with code {launcher_code}"
    signum = signal_of_exit_code(launcher_code)
    if launcher_code < 0:
        ending = f"was killed by {_signal_name(-launcher_code)}"
    elif signum:
        ending = f"says that a rank was killed by {signal.Signals(signum).name}"
    reason = f"the launcher {ending}, {count} of {len(states)} ranks did not complete"
    return Verdict("failed", _to_exit_code(launcher_code), reason)


def _stop_reason(states: Sequence[str]) -> str:
    killed = sum(state not in FINAL_STATES for state in states)
    if killed:
        return f"{killed} of {len(states)} ranks were killed"
    return "every rank finished its step" if "failed" not in states else "no rank had to be killed"


def _describe_failure_during_stop(statuses: Mapping[int, RankStatus]) -> str:
    first = min((s for s in statuses.values() if s.state == "failed"), key=lambda s: s.time, default=None)
    return f"; rank {first.rank} failed: {first.error or 'it wrote no error'}" if first else ""


def _to_exit_code(launcher_code: int) -> int:
    """A shell's exit code: DeepSpeed's `256 - signal` and Python's `-signal` become `128 + signal`; 0 becomes 1."""
    if launcher_code < 0:
        return 128 - launcher_code
    signum = signal_of_exit_code(launcher_code)
    if signum:
        return 128 + signum
    return launcher_code or ExitCode.FINDINGS
