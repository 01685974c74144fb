# SPDX-License-Identifier: Apache-2.0
"""The supervisor's verdict comes before the log: it names the rank that ended first, which the log may not show."""

from __future__ import annotations

from dataclasses import replace

from harness.diagnosis.diagnosis_types import Diagnosis, LogEvent
from harness.diagnosis.first_cause import CauseSelection
from harness.verdicts import VERDICT, Verdict

_COMPARED_CHARS = 60
"""Characters of an error that are compared with the verdict's; the log may have its first line alone."""
_LOST_PEER_CAUSE = "LG073"
VERDICT_NOTE = f"`{VERDICT}` of the run names this cause: its supervisor saw the ranks end"
"""A note on a diagnosis that no line of the log supports."""


def select_by_verdict(verdict: Verdict, selection: CauseSelection) -> CauseSelection:
    """Select the line of the log that agrees with the verdict, or the verdict itself where no line does."""
    candidates = [e for e in selection.others if e.level == "root" and e.rank == verdict.rank and e.rank is not None]
    if verdict.crashed or verdict.refused:
        prefix = " ".join(verdict.reason.split())[:_COMPARED_CHARS]
        matches = [e for e in selection.others if prefix and prefix in " ".join(e.text.split())]
        first = selection.first
        if first is not None and (first in matches or (first.rank is not None and first.rank == verdict.rank)):
            return selection
        if matches and all(e.cause == _LOST_PEER_CAUSE for e in matches):
            return selection  # the log alone knows the lost rank
        candidates = matches or candidates
    elif verdict.cause:
        candidates = [e for e in candidates if e.cause and e.sure]
    elif verdict.rank is None:
        return selection
    spoken = LogEvent(0, verdict.reason, verdict.cause, "root", bool(verdict.cause), verdict.host, verdict.rank)
    first = candidates[0] if candidates else spoken
    return CauseSelection(first, False, selection.survived_errors, tuple(e for e in selection.others if e is not first))


def diagnose_clean_end(verdict: Verdict, notes: tuple[str, ...]) -> Diagnosis | None:
    """The diagnosis of a run that did not fail; None where it did."""
    if verdict.state == "completed":
        return Diagnosis("completed", "certain", title="the job ended well", notes=notes)
    if verdict.state == "stopped":
        return Diagnosis("stopped", "certain", "LG069", "the job was asked to stop", verdict.reason, notes=notes)
    return None


def follow_verdict(diagnosis: Diagnosis, verdict: Verdict) -> Diagnosis:
    """The diagnosis with the run's verdict, and with its rank and host. The verdict is left out if it is about a rank
    that lost a peer, and the log names that peer; or if the decisive line is another host's, such as its kernel's.
    """
    notes = (*diagnosis.notes, *verdict.notes)
    of_peer = verdict.crashed and diagnosis.rank not in (None, verdict.rank)
    of_other_host = diagnosis.line and diagnosis.host and verdict.host and diagnosis.host != verdict.host
    if of_peer or of_other_host:
        return replace(diagnosis, notes=notes)
    if verdict.state != "failed" or verdict.rank is None:
        return replace(diagnosis, notes=notes, verdict=verdict)
    return replace(diagnosis, rank=verdict.rank, host=verdict.host, notes=notes, verdict=verdict)
