"""How a run ended, decided from what the ranks wrote; the launcher's exit code only fills in.

DeepSpeed's launcher ends with 0 when its own child was killed, and an exit-time abort can follow a completed training:
neither is believed. Starts and stops nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import ExitCode
from harness.run_records.run_files import json_of
from harness.verdicts import Verdict

FINAL_STATES = {"completed", "stopped", "failed"}
_PEER_GONE = re.compile(r"connection (closed|reset) by peer|broken pipe|remote process exited|ncclRemoteError", re.I)
_PEER_REPORT_SECONDS = 3.0
"""By how much clocks and the look at processes may make a lost rank seem later than what its peers say of it."""
_ROOT_CAUSE_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""Signals that no launcher or peer sends in the first second; SIGTERM and SIGABRT may be consequences."""
_CAUSE_OF_SIGNAL = {
    signal.SIGKILL: "LG003",
    signal.SIGSEGV: "LG018",
    signal.SIGBUS: "LG018",
    signal.SIGILL: "LG018",
    signal.SIGFPE: "LG018",
}
"""What `harness explain` says of a rank that such a signal ended."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What one rank last wrote of itself. `time` is seconds since 1970."""

    rank: int
    host: str
    pid: int
    state: str
    step: int
    time: float
    error: str = ""
    checkpoint: str = ""
    phase: str = "step"
    refused: bool = False
    """Whether the error is a finding about the user's input, as a start with the same input would have it again."""

    @property
    def is_final(self) -> bool:
        """Nothing more will come from this rank."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True)
class RankExit:
    """A rank that was seen to be gone without a final word."""

    rank: int
    pid: int
    time: float
    signum: int | None
    reported_by_launcher: bool = False
    """The launcher of its host has told the signal: this rank was not lost because of others."""


def read_statuses(run_dir: Path) -> dict[int, RankStatus]:
    """Every rank's last state; a file that cannot be read (it is replaced while we look) is left out."""
    found = {}
    for file in sorted((run_dir / "status").glob("rank-*.json")):
        try:
            raw = json_of(file)
            status = RankStatus(
                rank=int(raw["rank"]),
                host=str(raw.get("host", "")),
                pid=int(raw.get("pid", 0)),
                state=str(raw["state"]),
                step=int(raw.get("step") or 0),
                time=float(raw.get("time") or 0.0),
                error=str(raw.get("error") or ""),
                checkpoint=str(raw.get("checkpoint") or ""),
                phase=str(raw.get("phase") or "step"),
                refused=bool(raw.get("refused")),
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        found[status.rank] = status
    return found


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
) -> Verdict:
    """The verdict on a run of `world` ranks whose launcher ended with `launcher_code` (negative: by that signal).

    `stopped_by` is the signal that the harness was asked to stop with, `killed` says that it had to kill ranks for it.
    A rank that failed meanwhile, such as in saving, makes it a failure; with `killed` it may have failed for having
    lost its peers, and the stop only names it. `told` is the text of the file `stop`, for a run that a rank or the
    launcher was asked to stop. `reaches`: the launcher starts ranks on other hosts.
    """
    step = max((s.step for s in statuses.values()), default=0)
    states = [statuses[rank].state if rank in statuses else "missing" for rank in range(world_size)]
    if all(state == "completed" for state in states):
        note = f"the launcher ended with code {launcher_code} after every rank had completed" if launcher_code else ""
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
    notes = (f"it was being stopped, as {signal.Signals(stopped_by).name} asked",) if stopped_by is not None else ()
    return replace(
        _failure_verdict(first, statuses, states, launcher_code, starts_remote_ranks=starts_remote_ranks),
        step=step,
        notes=notes,
    )


def parse_stop_signal(told: str) -> int | None:
    """The signal that the file `stop` names as its first word."""
    word = (told.split() or [""])[0].rstrip(":,")
    name = "SIGINT" if word == "Ctrl-C" else word
    return int(signal.Signals[name]) if name in signal.Signals.__members__ else None


def _stopped_verdict(told: str, step: int) -> Verdict:
    """Every rank has stopped, and nobody asked the harness for it."""
    signum = parse_stop_signal(told)
    if signum is None:
        return Verdict("stopped", ExitCode.INTERRUPTED, "asked to by the file `stop`", step=step)
    reason = f"every rank finished its step ({told.strip()})"
    return Verdict("stopped", 128 + signum, reason, step=step, signal=signal.Signals(signum).name)


def _stop_signal_of_exit_code(launcher_code: int) -> int | None:
    """A signal that asks for a stop and that ended a rank, by the launcher's exit code of `256 - signal`."""
    asked = 256 - launcher_code
    return asked if asked in {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1} else None


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
        code = _to_exit_code(launcher_code)
        return Verdict("failed", code, error, first.rank, first.host, refused=first.refused, crashed=not first.refused)
    if first.signum == signal.SIGKILL and launcher_code == 0 and not starts_remote_ranks:
        # The launcher reports the death of a rank; it ends with 0 only when its own child was killed. With other hosts
        # it also does when pdsh was, as this side does to those that do not end by themselves.
        return Verdict("failed", ExitCode.FINDINGS, "DeepSpeed's launch process was killed, and its ranks with it")
    host = statuses[first.rank].host if first.rank in statuses else ""
    if first.signum is None:
        return Verdict("failed", _to_exit_code(launcher_code), "it ended without a word", first.rank, host)
    hint = ", as the kernel does when memory runs out" if first.signum == signal.SIGKILL else ""
    name, cause = signal.Signals(first.signum).name, _CAUSE_OF_SIGNAL.get(signal.Signals(first.signum), "")
    code = 128 + first.signum
    return Verdict("failed", code, f"killed by {name}{hint}", first.rank, host, signal=name, cause=cause)


def _find_first_failure(
    statuses: Mapping[int, RankStatus], deaths: Sequence[RankExit], launcher_code: int
) -> RankStatus | RankExit | None:
    """A rank that was killed comes before peers that failed for having lost it, though they may say so first.

    The launcher's code tells a killed rank for certain (`256 - signal`); a zombie tells its signal until it is reaped.
    """
    told = signal_of_exit_code(launcher_code)
    silent = [d for d in deaths if d.rank not in statuses or not statuses[d.rank].is_final]
    silent = [replace(d, signum=told) if d.signum is None else d for d in silent]
    failed = min((s for s in statuses.values() if s.state == "failed"), key=lambda s: s.time, default=None)
    killed = min((d for d in silent if d.signum in _ROOT_CAUSE_SIGNALS), key=lambda d: d.time, default=None)
    if killed and (
        failed is None or killed.reported_by_launcher or killed.signum == told or killed.time <= failed.time + 1.0
    ):
        return killed
    others = min((d for d in silent if d.signum != signal.SIGTERM), key=lambda d: d.time, default=None)
    if failed and others and is_lost_peer_error(failed.error) and others.time <= failed.time + _PEER_REPORT_SECONDS:
        return killed or others  # who has no word left is gone; who says that a peer is gone is not
    return failed or killed or others


def is_lost_peer_error(error: str) -> bool:
    """Whether a rank failed because the connection to another one broke."""
    return bool(_PEER_GONE.search(error))


def signal_of_exit_code(launcher_code: int) -> int | None:
    """The signal that ended a rank, when DeepSpeed's launcher ends with `256 - signal`."""
    told = 256 - launcher_code
    return told if told in _ROOT_CAUSE_SIGNALS | {signal.SIGABRT, signal.SIGTERM} else None


def _unexplained_failure_verdict(states: Sequence[str], launcher_code: int) -> Verdict:
    count = sum(state not in {"completed", "stopped"} for state in states)
    ended = f"ended with code {launcher_code}"
    told = signal_of_exit_code(launcher_code)
    if launcher_code < 0:
        ended = f"was killed by {signal.Signals(-launcher_code).name}"
    elif told:
        ended = f"says that a rank was killed by {signal.Signals(told).name}"
    reason = f"the launcher {ended}, {count} of {len(states)} ranks did not complete"
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
    told = signal_of_exit_code(launcher_code)
    if told:
        return 128 + told
    return launcher_code or ExitCode.FINDINGS
