# SPDX-License-Identifier: Apache-2.0
"""Logs without an error that show what went wrong: ranks that the launcher ended, hosts that took no part."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.diagnosis.diagnosis_types import Diagnosis, LogEvent

_NO_HOSTFILE, _HOSTS_WANTED = "LG075", "LG179"
_KILLING = re.compile(r"\bKilling subprocess \d+")
_STOPPED = re.compile(r"Main process received SIG|exits with return code")
_MEMORY_IN_USE = re.compile(r"CPU Virtual Memory: +used = [\d.]+ GB, percent = (?P<percent>[\d.]+)%")
_KILLED_TITLE = "the launcher ended all ranks because one exited, and the log does not say why"
_KILLED_CHANGE = (
    "a rank that exits without a message was most often killed by the kernel, because the host ran out of memory: "
    "look for `Killed process` in `dmesg` of that host, then reduce host memory (fewer ranks per host, no "
    "`pin_memory`, NVMe instead of CPU offload) or give the container more; else read that rank's own log "
    "(`--enable_each_rank_log FOLDER`)"
)


def diagnose_silent_end(events: Sequence[LogEvent], last_lines: tuple[tuple[int, str], ...]) -> Diagnosis | None:
    """The diagnosis of a log without a failure; None where nothing points to one. `last_lines`: (number, text)."""
    killing = next((line for line in last_lines if _KILLING.search(line[1])), None)
    if killing is not None and not any(_STOPPED.search(text) for _, text in last_lines):
        number, text = killing
        memory = next((m["percent"] for _, t in last_lines if (m := _MEMORY_IN_USE.search(t))), "")
        notes = (f"{memory} % of the host's memory was in use shortly before",) if memory else ()
        return Diagnosis(
            *("failed", "likely", "LG003", _KILLED_TITLE, text, _KILLED_CHANGE),
            line=number,
            lines=last_lines[-10:],
            notes=notes,
        )
    warning = next((e for e in events if e.cause == _NO_HOSTFILE), None)
    if warning is None:
        return None
    evidence = describe_missing_hosts(events)
    if not evidence:  # a job of one host prints it too
        return None
    title, change = _describe_no_hostfile()
    return Diagnosis(
        *("failed", "likely", _NO_HOSTFILE, title, warning.text, change),
        line=warning.line_number,
        lines=last_lines[-10:],
        notes=(evidence,),
    )


def describe_missing_hosts(events: Sequence[LogEvent]) -> str:
    """Evidence in the log that more hosts were wanted than the launcher started; empty where nothing does."""
    warnings = [e for e in events if e.cause == _NO_HOSTFILE]
    if not warnings:
        return ""
    hosts = sorted({e.host for e in warnings if e.host})
    if len(hosts) > 1:
        return f"{len(hosts)} hosts each started a separate run and do not train together: {', '.join(hosts[:8])}"
    wanted = next((e.details["hosts"] for e in events if e.cause == _HOSTS_WANTED and "hosts" in e.details), "")
    if wanted:
        return f"{wanted} hosts were requested, and only the ranks of this host were started"
    is_wanted = any(e.cause == _HOSTS_WANTED for e in events)
    return (
        "accelerate is configured for several machines, and only the ranks of this host were started"
        if is_wanted
        else ""
    )


def _describe_no_hostfile() -> tuple[str, str]:
    from harness.diagnosis.catalogue import causes_by_id

    cause = causes_by_id()[_NO_HOSTFILE]
    return cause.title, cause.change
