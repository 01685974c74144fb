# SPDX-License-Identifier: Apache-2.0
"""From the streams of a log to its diagnosis: read, scan, select the first cause, explain it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.evidence.allocation import parse_size
from harness.diagnosis.evidence.log_end import diagnose_finished
from harness.diagnosis.explanation import collect_notes, explain_selection, merge_facts
from harness.diagnosis.first_cause import LogCounts, select_first_cause
from harness.diagnosis.reader.hang_evidence import explain_hang
from harness.diagnosis.reader.job_logs import drop_older_events, locate_lines, read_logs
from harness.diagnosis.reader.log_facts import add_frame_versions
from harness.diagnosis.reader.log_scanner import LogScanner
from harness.diagnosis.silent_faults import observe_series
from harness.diagnosis.verdict_priority import diagnose_clean_end, follow_verdict, select_by_verdict
from harness.units import format_bytes
from harness.verdicts import Verdict

_MAX_OBSERVATIONS = 4


def diagnose(
    streams: Iterable[BinaryIO],
    *,
    plan: Mapping[str, Any] | None = None,
    hosts: Mapping[int, str] | None = None,
    verdict: Verdict | None = None,
) -> Diagnosis:
    """The first cause in one or several logs of one job, read one after the other.

    `plan` is the `plan.json` of the run, `hosts` the hosts of its ranks, `verdict` that of its supervisor, which
    outranks the logs. Memory stays bounded for logs of any size. Raises OSError when a stream cannot be read.
    """
    scanner = LogScanner(hosts or {})
    logs = read_logs(streams, scanner)
    readers = logs.readers
    num_bytes = sum(reader.size for reader in readers)
    num_lines = sum(reader.lines for reader in readers)
    if not num_bytes and verdict is None:
        title = logs.refusals[0] if logs.refusals else "the log is empty"
        change = "give the text that a job printed" if logs.refusals else ""
        return Diagnosis("not text" if logs.refusals else "empty", title=title, change=change)
    logs.notes += drop_older_events(scanner, readers)
    scanner.events += explain_hang(scanner, logs.dumps, logs.dump_places)
    progress = [reader.progress for reader in readers]
    is_completed = scanner.num_clean_exits > 0 and not any(e.level == "end" for e in scanner.events)
    num_ranks = scanner.world_size or len(scanner.ranks)
    num_writers = max((len(reader.writers) for reader in readers), default=0)
    counts = LogCounts(
        progress=progress,
        num_ranks=num_ranks,
        num_writers=num_writers,
        clock_went_back=scanner.clock_went_back or len(readers) > 1,
        is_completed=is_completed,
        end_counts=[(reader.phases.num_ends, reader.phases.num_retries) for reader in readers],
        reported_rank=int(rank) if (rank := scanner.torchrun_root_cause.get("rank", "")).isdecimal() else None,
    )
    selection = select_first_cause(scanner.events, counts)
    if verdict is not None and verdict.state == "failed":
        selection = select_by_verdict(verdict, selection)
    notes = collect_notes(selection, scanner)
    clean_end = diagnose_finished(selection, notes) if verdict is None else diagnose_clean_end(verdict, notes)
    diagnosis = clean_end or explain_selection(selection, scanner, readers, is_completed=is_completed)
    diagnosis = follow_verdict(diagnosis, verdict) if verdict is not None else diagnosis
    if diagnosis.cause == "LG001" and plan:
        diagnosis = replace(diagnosis, notes=(*compare_with_plan(diagnosis.details, plan), *diagnosis.notes))
    facts = merge_facts(readers)
    facts.world_size = scanner.world_size or facts.world_size
    add_frame_versions(facts, [frame.file for event in scanner.events[:50] for frame in event.frames])
    seen = dict.fromkeys(note for reader in readers for note in observe_series(reader.series, facts))
    notes = (*diagnosis.notes, *logs.notes, *logs.refusals, *list(seen)[:_MAX_OBSERVATIONS])
    ranks = tuple(sorted(scanner.ranks)[:4096])
    names = {*scanner.hosts.values(), *scanner.ranks_by_host, *(e.host for e in scanner.events)}
    hosts_seen = tuple(sorted(names - {""}))[:4096]
    diagnosis = replace(diagnosis, ranks=ranks, num_lines=num_lines, num_bytes=num_bytes, facts=facts, hosts=hosts_seen)
    return locate_lines(replace(diagnosis, notes=notes), readers)


def compare_with_plan(details: Mapping[str, str], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on a GPU that ran out of memory. `plan` is a run's `plan.json`. Empty where the plan has no peak."""
    peak, capacity = plan.get("gpu_peak_bytes"), plan.get("gpu_capacity_bytes")
    if not isinstance(peak, int) or not peak:
        return ()
    notes = [f"the plan expects {format_bytes(peak)} per GPU at the peak, in {plan.get('gpu_peak_phase') or 'a step'}"]
    total, allocated, used, request = (
        parse_size(details.get(name, "")) for name in ("total", "allocated", "used", "wanted")
    )
    usage = allocated or used
    if total and isinstance(capacity, int) and abs(total - capacity) > capacity // 10:
        notes.append(
            f"this GPU has {format_bytes(total)}, the plan assumed {format_bytes(capacity)}: set `cluster.gpu`"
        )
    if usage and request:
        need = usage + request
        comparison = "more" if need > peak else "less"
        notes.append(
            f"torch held {format_bytes(usage)} and requested {format_bytes(request)} more, {comparison} than the plan"
        )
    return tuple(notes)
