# SPDX-License-Identifier: Apache-2.0
"""A launch as text: the plan of a dry run, the job that a cluster was given, the summary of a run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.checkpoints.checkpoint_list import find_best_checkpoint
from harness.diagnosis.diagnosis_types import Diagnosis
from harness.errors import ExitCode
from harness.file_io import relative_to_cwd
from harness.launching.setup.environment import PROCESS_VARIABLES, redacted_value
from harness.launching.setup.jobset import Manifest
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.setup.launch_request import NOTHING_WRITTEN, RunComplete
from harness.launching.setup.slurm import SlurmJob
from harness.launching.supervise.launch_runner import LaunchResult
from harness.launching.supervise.restart_files import log_name
from harness.run_records.run_record import RunRecord
from harness.run_records.summary import RunSummary, median_or_none, summarise_run, time_parts
from harness.slowness import SlowdownReport, diagnose_slowness
from harness.spec.sections.zero_spec import ZeroSpec
from harness.units import format_bytes, format_count, format_seconds
from harness.verdicts import Verdict, describe_end, describe_verdict
from harness.views.log_diagnosis import render_cause_rows, wrap_lines
from harness.views.report.memory_section import compare_memory
from harness.views.slowness_text import summary_lines
from harness.views.style import Style, escape_unprintable

_FILE_DESCRIPTIONS = {
    "spec.yaml": "the spec as written",
    "overrides.txt": "the `--set` options",
    "spec.resolved.json": "the spec with every derived number, as each rank reads it",
    "ds_config.json": "the DeepSpeed JSON, as the engine gets it",
    "hostfile": "hosts and slots",
    "findings.json": "findings of the gates",
    "deepspeed.env": "variables that DeepSpeed sends to the hosts",
    "secrets.json": "secrets of `launch.env` for ranks on other hosts, until the run ends",
    "plan.json": "memory and time as in `harness plan`",
    "launch.json": "this dry run as JSON",
    "launch.sh": "the command below, for a shell",
}
_MAX_HOSTS = 16
"""Hosts that a dry run lists."""
_NOTHING_WRITTEN = "Nothing was written or started"


def render_dry_run(plan: LaunchPlan, zero: ZeroSpec, ready: bool, style: Style) -> str:
    """Files, environment, command and ranks of a dry run."""
    offload = f", optimizer on {zero.offload_optimizer.device}" if zero.offload_optimizer else ""
    where = "on this machine" if plan.local else f"on {len(plan.hosts)} host{'s' if len(plan.hosts) > 1 else ''}"
    ranks = f"{plan.world_size} rank{'s' if plan.world_size > 1 else ''}"
    blocks = [
        f"{style.paint(plan.name, '', bold=True)}: {ranks} {where}, ZeRO-{zero.stage}{offload}",
        _render_block(
            f"Run directory  {format_path(plan.run_dir)}",
            _align_columns([(name, _FILE_DESCRIPTIONS.get(name, "")) for name in plan.file_names]),
        ),
        _render_block("Environment of every host, in addition to the shell's", _environment_lines(plan)),
        _render_block(f"Compiled ops  {', '.join(plan.ops) or 'none'}", [_format_ops_state(plan, ready)]),
        _render_block(f"Command, in {escape_unprintable(str(plan.cwd))}", _command_lines(plan.argv)),
        _render_block("Ranks by host", _align_columns(_list_hosts(plan.hosts))),
    ]
    if plan.resume:
        blocks.insert(1, f"Resumes from {plan.resume}")
    if plan.node_rank is not None:
        blocks.append(f"This is {plan.hosts[plan.node_rank].name}; the same command runs on every host.")
    if not plan.local:
        blocks.append("The run directory must be on a file system that every host mounts under the same path.")
    return "\n\n".join([*blocks, _NOTHING_WRITTEN])


def render_summary(
    outcome: LaunchResult,
    record: RunRecord,
    sample: str,
    report: Path | None,
    style: Style,
    *,
    diagnosis: Diagnosis | None = None,
    width: int = 120,
) -> str:
    """The end of a run in ten lines: for a failure its cause and the change, then losses, speed, memory against the
    plan, why it is slow, what is kept where, and the command that comes next. The sample comes on top of them.
    """
    figures, verdict = summarise_run(record), outcome.verdict
    lines = [_format_headline(outcome, style)]
    notes = [("note", note) for note in verdict.notes]
    if verdict.state == "completed" and verdict.reason:
        notes.insert(0, ("not uploaded", verdict.reason))
    for name, text in render_cause_rows(diagnosis) if diagnosis else notes:
        lines += wrap_lines(f"  {name:<15} ", text, max(width, 60))
    parts = time_parts(record)
    rows = [("time", f"{format_seconds(verdict.seconds)}: {parts}")] if parts else []
    rows += [*_loss_rows(record), *_speed_rows(record, figures), *_memory_rows(record)]
    for name, text in [*rows, *_slowness_rows(record, verdict)]:
        lines += wrap_lines(f"  {name:<15} ", text, max(width, 60))
    lines += [f"  {name:<15} {text}" for name, text in _artifact_rows(outcome, report, diagnosis)]
    for name, text in _store_rows(record, verdict):
        lines += wrap_lines(f"  {name:<15} ", text, max(width, 60))
    if sample:
        lines += [
            "",
            "Sample, generated from the export:",
            *("  | " + line for line in sample.rstrip("\n").splitlines()[:12]),
            "",
        ]
    lines += _next_lines(outcome, diagnosis)
    return "\n".join(lines)


def launch_as_json(
    outcome: LaunchResult,
    record: RunRecord,
    report: Path | None,
    diagnosis: Mapping[str, object] | None = None,
) -> str:
    """The summary for programs. `diagnosis` is that of a failed run's log."""
    verdict = outcome.verdict
    last = {kind: record.lines_of(kind)[-1] for kind in ("step", "eval") if record.lines_of(kind)}
    body = {
        "format_version": 1,
        "state": verdict.state,
        "exit_code": int(verdict.code),
        "reason": verdict.reason or None,
        "rank": verdict.rank,
        "host": verdict.host or None,
        "signal": verdict.signal or None,
        "step": verdict.step,
        "seconds": round(outcome.seconds, 3),
        "attempts": outcome.attempts,
        "run_dir": str(outcome.plan.run_dir),
        "checkpoint": str(outcome.checkpoint) if outcome.checkpoint else None,
        "export": str(outcome.export) if outcome.export else None,
        "report": str(report) if report else None,
        "last": last,
        "slow": [_cause_as_dict(slowdown) for slowdown in diagnose_slowness(record).slowdowns]
        if verdict.state == "completed"
        else [],
        "notes": list(verdict.notes),
        "diagnosis": diagnosis,
    }
    return json.dumps(body, indent=2)


def _cause_as_dict(report: SlowdownReport) -> dict[str, Any]:
    slow = report.slowdown
    settings = [
        {"sets": dict(setting.sets), "planned_gain": None if prediction is None else prediction.gain}
        for setting, prediction in report.settings
    ]
    share = {"share": round(slow.share, 4), "planned": slow.is_planned}
    return {"cause": slow.name, **share, "evidence": list(slow.evidence), "settings": settings}


def format_path(path: Path) -> str:
    """A path for people: relative where it is below the current folder."""
    return escape_unprintable(str(relative_to_cwd(path)))


def render_node_summary(outcome: LaunchResult, style: Style) -> str:
    """The end of a job on one of its hosts, with `--no-ssh`. The first host prints the whole summary."""
    plan = outcome.plan
    host = plan.hosts[plan.node_rank or 0].name
    return f"{_format_headline(outcome, style)}\n  {host} of {len(plan.hosts)} hosts; {plan.run_dir}"


def _format_headline(outcome: LaunchResult, style: Style) -> str:
    """The verdict in one line, with the run's time where the run did not fail."""
    verdict, name = outcome.verdict, outcome.plan.name
    took = format_seconds(outcome.seconds)
    if verdict.state == "completed":
        did = (
            (f"trained {verdict.step} steps" if verdict.step else "ended")
            if outcome.plan.resume is None
            else f"resumed and reached step {verdict.step}"
        )
        colour, but = ("yellow", ", not uploaded") if verdict.code == ExitCode.NOT_UPLOADED else ("green", "")
        return f"{style.paint(f'completed{but}', colour, bold=True)}: {name} {did} in {took}"
    if verdict.state == "stopped":
        return f"{style.paint('stopped', 'yellow', bold=True)} after {took}{escape_unprintable(describe_end(verdict))}"
    return f"{style.paint('failed', 'red', bold=True)}{escape_unprintable(describe_end(verdict))}"


def _loss_rows(record: RunRecord) -> list[tuple[str, str]]:
    """One line: the first and last training loss, and the held-out loss."""
    parts = []
    losses, evals = record.points("step", "loss"), record.points("eval", "loss")
    if losses:
        parts.append(f"{losses[0][1]:.3f} at step {losses[0][0]:g}, {losses[-1][1]:.3f} at step {losses[-1][0]:g}")
    if evals:
        entropy = record.points("eval", "unigram_entropy")
        reference = f" (unigram entropy {entropy[-1][1]:.3f}: token frequencies alone)" if entropy else ""
        parts.append(f"held-out loss {evals[-1][1]:.3f}{reference}")
    own = [(name, record.points("eval", name)) for name in record.measured_names() if name.startswith("own.")]
    parts += [f"{name.removeprefix('own.')} {points[-1][1]:.3g}" for name, points in own if points]
    return [("loss", "; ".join(parts))] if parts else []


_STEP_PARTS = ("data", "forward", "backward", "optimizer", "pipeline")


def _speed_rows(record: RunRecord, s: RunSummary) -> list[tuple[str, str]]:
    """Medians of speed and step time, and the parts of a step."""
    rows = []
    rows_a_step = record.run.batch.global_batch if record.run is not None else None
    if s.tokens_per_second == 0 and s.step_seconds and rows_a_step:  # rows of the user's own data have no tokens
        rows.append(("speed", f"{format_count(rows_a_step / s.step_seconds)} rows/s"))
    elif s.tokens_per_second is not None:
        mfu = f", MFU {100 * s.mfu:.1f}%" if s.mfu is not None else ""
        rows.append(("speed", f"{format_count(s.tokens_per_second)} tokens/s{mfu}"))
    if s.step_seconds:
        medians = [(name, median_or_none(record.values(f"seconds_{name}"))) for name in _STEP_PARTS]
        shares = [f"{name} {100 * value / s.step_seconds:.0f}%" for name, value in medians if value is not None]
        rows.append(("a step", format_seconds(s.step_seconds) + (f": {', '.join(shares)}" if shares else "")))
    return rows


def _memory_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Peak memory of rank 0, with the planned peak."""
    peaks = []
    for name, (planned, peak) in compare_memory(record):
        peaks.append(f"{name} {format_bytes(peak)}" + (f" (planned {format_bytes(planned)})" if planned else ""))
    return [("memory", ", ".join(peaks) + " on rank 0")] if peaks else []


def _slowness_rows(record: RunRecord, verdict: Verdict) -> list[tuple[str, str]]:
    """Causes of slowness; none for a run that did not complete."""
    lines = summary_lines(diagnose_slowness(record)) if verdict.state == "completed" else []
    return [("slow", "; ".join(lines))] if lines else []


def _artifact_rows(outcome: LaunchResult, report: Path | None, diagnosis: Diagnosis | None) -> list[tuple[str, str]]:
    """Checkpoint, export, report and log; the run directory where there is no report."""
    run_dir = outcome.plan.run_dir
    if not outcome.ranks_started:
        return [("run directory", format_path(run_dir))]
    rows = [("checkpoint", _describe_checkpoint(outcome))]
    best = find_best_checkpoint(run_dir)
    if best is not None and outcome.checkpoint is not None and best.path.name != outcome.checkpoint.name:
        rows.append(("best", f"{format_path(best.path)}, held-out loss {best.loss:.4f}"))
    if outcome.export:
        rows.append(("export", format_path(outcome.export)))
    rows.append(("report", format_path(report)) if report else ("run directory", format_path(run_dir)))
    if outcome.verdict.state == "failed":
        line = f", line {diagnosis.line}" if diagnosis is not None and diagnosis.line else ""
        rows.append(("log", format_path(run_dir / "logs" / log_name(outcome.verdict.attempt)) + line))
    return rows


def _store_rows(record: RunRecord, verdict: Verdict) -> list[tuple[str, str]]:
    """The newest checkpoint in the object store, and why a newer one is not there, unless the verdict says so."""
    uploads = record.lines_of("upload")
    steps = [int(line.get("step", 0)) for line in uploads]
    failed = [line for line in record.lines_of("upload_failed") if not line.get("skipped")]
    missing = [line for line in failed if int(line.get("step", 0)) > max(steps, default=0)]
    rows = [("store", str(uploads[-1].get("url", "")))] if uploads else []
    is_told = "not uploaded" in verdict.reason
    return rows + [("not in the store", str(line.get("error", ""))) for line in missing[-1:] if not is_told]


def _describe_checkpoint(outcome: LaunchResult) -> str:
    """The newest complete checkpoint of the run; without one, that which the run resumed from."""
    if outcome.checkpoint is not None:
        return format_path(outcome.checkpoint)
    resume = outcome.plan.resume
    return "none was completed" if resume is None else f"none was completed; resumed from {format_path(resume)}"


def _next_lines(outcome: LaunchResult, diagnosis: Diagnosis | None) -> list[str]:
    run_dir = shlex.quote(format_path(outcome.plan.run_dir))
    if outcome.verdict.state == "completed" or outcome.export:
        saves_itself = outcome.export is None and outcome.checkpoint is None and not outcome.verdict.step  # a script
        shows = outcome.export is not None or saves_itself
        return [f"Next: harness report {run_dir}" if shows else f"Next: harness export {run_dir} OUT"]
    lines = []
    resume = run_dir if outcome.checkpoint else None
    if resume is None and outcome.plan.resume is not None:
        resume = shlex.quote(format_path(outcome.plan.resume))
    if resume is not None:
        lines = [f"To resume: the same command with `--resume {resume}`"]
    elif outcome.verdict.state == "stopped":
        lines = ["To start again: the same command"]
    if diagnosis is not None:
        page = f", `harness explain {diagnosis.cause}`" if diagnosis.cause else ""
        lines.append(f"More: `harness explain --log {run_dir}`{page}")
    return lines


def _environment_lines(plan: LaunchPlan) -> list[str]:
    variables = [v for v in plan.variables if v.name not in PROCESS_VARIABLES]
    return _align_columns([(escape_unprintable(f"{v.name}={redacted_value(v)}"), v.origin) for v in variables])


def _format_ops_state(plan: LaunchPlan, ready: bool) -> str:
    if not plan.ops:
        return "  nothing to compile"
    elsewhere = "on each host, in one process, before any rank starts"
    if not plan.has_local_ranks:
        return f"  this machine has no ranks; would be compiled {elsewhere}"
    first = "compiled already" if ready else "would be compiled first, in one process"
    return f"  {first}" if plan.local else f"  {first}; where they are not, {elsewhere}"


def _command_lines(argv: tuple[str, ...]) -> list[str]:
    """One option per line, so that a long command can be read."""
    lines, current = [], shlex.quote(argv[0])
    for word in argv[1:]:
        if word.startswith("--") or word.endswith(".py"):
            lines.append(current)
            current = "  " + shlex.quote(word)
        else:
            current += " " + shlex.quote(word)
    lines.append(current)
    return ["  " + escape_unprintable(line) + (" \\" if line is not lines[-1] else "") for line in lines]


def _list_hosts(hosts: Sequence[HostPlan]) -> list[tuple[str, str]]:
    """The hosts and their ranks; of many the first ones and the last."""
    texts = (
        f"ranks {host.ranks[0]}-{host.ranks[-1]}" if len(host.ranks) > 1 else f"rank {host.ranks[0]}" for host in hosts
    )
    rows = [(host.name, text) for host, text in zip(hosts, texts, strict=True)]
    if len(rows) <= _MAX_HOSTS:
        return rows
    return [*rows[: _MAX_HOSTS - 2], (f"{len(rows) - _MAX_HOSTS + 1:,} more hosts", "..."), rows[-1]]


def _render_block(title: str, lines: list[str]) -> str:
    return "\n".join([title, *lines])


def _align_columns(pairs: list[tuple[str, str]]) -> list[str]:
    width = min(60, max((len(left) for left, _ in pairs), default=0))
    return [f"  {left.ljust(width)}  {right}".rstrip() for left, right in pairs]


def render_complete(complete: RunComplete) -> str:
    """The answer to a resume of a complete run."""
    run_dir, verdict = format_path(complete.run_dir), complete.verdict
    first = f"already complete: {run_dir} {describe_verdict(verdict)} by this spec. {NOTHING_WRITTEN}."
    return (
        f"{first}\nNext: harness report {run_dir}, or harness export {run_dir} OUT. `--resume never` trains it again."
    )


def complete_as_json(complete: RunComplete) -> str:
    """The same for programs, with the fields of a launch that are known."""
    verdict = complete.verdict
    body = {"format_version": 1, "state": verdict.state, "exit_code": 0, "step": verdict.step}
    return json.dumps({**body, "already_complete": True, "run_dir": str(complete.run_dir)}, indent=2)


_HEAD = """\
# Made by `harness launch --kubernetes`, for JobSet 0.10 or newer: kubectl apply --server-side -f FILE
"""
_WIDEST_LINE = sys.maxsize


def render_jobset(manifest: Manifest) -> str:
    """The JobSet as YAML, one line for each value."""
    return _HEAD + yaml.safe_dump(manifest, sort_keys=False, default_flow_style=False, width=_WIDEST_LINE)


def render_job(job: SlurmJob) -> str:
    """The script and the command of a dry run."""
    return f"{job.file}\n\n{job.script}\nCommand\n  {shlex.join(job.argv)}\n\nNothing was written or submitted"


def render_submitted(job: SlurmJob, number: str) -> str:
    """The number of the job, its log, and the next commands."""
    log = f"{job.file.with_suffix('')}-{number}.log"
    return f"Submitted job {number} of {job.file}\nLog: {log}\nNext: squeue -j {number}; harness runs"
