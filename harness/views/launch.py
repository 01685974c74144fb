"""A launch as text: what would be done (`--dry-run`) and what came of it. Does nothing itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.launching.execute import Outcome
from harness.launching.plan import LaunchPlan, shown
from harness.launching.signals import name_of
from harness.plan.run import Run
from harness.records.record import Record
from harness.records.summary import Summary, middle, summarise
from harness.slowness import Told, diagnose
from harness.units import format_bytes, format_count, format_seconds
from harness.verdicts import Verdict
from harness.views.measured import measured
from harness.views.slowness import summary_lines
from harness.views.style import Style, printable

_FILES = {
    "spec.yaml": "the spec as it was written",
    "overrides.txt": "the `--set` options",
    "spec.resolved.json": "the spec with every derived number; what each rank reads",
    "ds_config.json": "the DeepSpeed JSON; what the engine gets",
    "hostfile": "hosts and slots",
    "findings.json": "what the gates had to say",
    "deepspeed.env": "variables that DeepSpeed sends to the hosts",
    "plan.json": "memory and time as `harness plan` has them",
    "launch.json": "what is shown here",
    "launch.sh": "the command below, for a shell",
}
_LAST_WORDS = "Nothing was written or started"


def dry_run(plan: LaunchPlan, run: Run, ready: bool, style: Style) -> str:
    """Files, environment, command and ranks of a launch that is not going to happen."""
    zero = run.spec.zero
    offload = f", optimizer on {zero.offload_optimizer.device}" if zero.offload_optimizer else ""
    where = "on this machine" if plan.local else f"on {len(plan.hosts)} host{'s' if len(plan.hosts) > 1 else ''}"
    ranks = f"{plan.world} rank{'s' if plan.world > 1 else ''}"
    blocks = [
        f"{style.paint(plan.name, '', bold=True)}: {ranks} {where}, ZeRO-{zero.stage}{offload}",
        _block(
            f"Run directory  {relative(plan.run_dir)}",
            _columns([(name, _FILES.get(name, "")) for name in plan.to_json()["files"]]),
        ),
        _block("Environment of every host beyond the shell's own", _environment(plan)),
        _block(f"Compiled ops  {', '.join(plan.ops) or 'none'}", [_ready(plan, ready)]),
        _block(f"Command, in {printable(str(plan.folder))}", _command(plan.argv)),
        _block("Ranks by host", _columns([(h.name, _span(h.ranks)) for h in plan.hosts])),
    ]
    if plan.resume:
        blocks.insert(1, f"Goes on from {plan.resume}")
    if plan.node is not None:
        blocks.append(f"This is {plan.hosts[plan.node].name}; the same command runs on every host.")
    if not plan.local:
        blocks.append("The run directory must be on a file system that every host sees under the same path.")
    return "\n\n".join([*blocks, _LAST_WORDS])


def summary(outcome: Outcome, record: Record, sample: str, report: Path | None, style: Style) -> str:
    """How the run ended in ten lines: losses, speed, memory against the plan, why it is slow, what is kept where, and
    the command that comes next. Notes about trouble and the sample come on top of them.
    """
    figures = summarise(record)
    lines = [_headline(outcome, max(outcome.verdict.step, figures.step), style)]
    lines += [f"  note: {note}" for note in outcome.verdict.notes]
    told = [*_losses(record), *_speed(record, figures), *_memory(record)]
    told += [*_slow(record, outcome.verdict), *_kept(outcome, report)]
    lines += [f"  {left:<15} {right}" for left, right in told]
    if sample:
        lines += [
            "",
            "Sample, generated from the export:",
            *("  | " + line for line in sample.rstrip("\n").splitlines()[:12]),
            "",
        ]
    lines += _next(outcome)
    return "\n".join(lines)


def as_json(
    outcome: Outcome,
    record: Record,
    report: Path | None,
    diagnosis: Mapping[str, object] | None = None,
) -> str:
    """The same for programs. `diagnosis` is what the log of a failed run tells."""
    verdict = outcome.verdict
    last = {kind: record.of(kind)[-1] for kind in ("step", "eval") if record.of(kind)}
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
        "slow": [_cause_json(told) for told in diagnose(record).causes] if verdict.state != "failed" else [],
        "notes": list(verdict.notes),
        "diagnosis": diagnosis,
    }
    return json.dumps(body, indent=2)


def _cause_json(told: Told) -> dict[str, Any]:
    slow = told.slow
    settings = [
        {"sets": dict(setting.sets), "planned_gain": None if prediction is None else prediction.gain}
        for setting, prediction in told.settings
    ]
    share = {"share": round(slow.share, 4), "planned": slow.planned}
    return {"cause": slow.name, **share, "evidence": list(slow.evidence), "settings": settings}


def relative(path: Path) -> str:
    """A path for people: as seen from the current folder where it is below it."""
    here = Path.cwd()
    return printable(str(path.relative_to(here)) if path.is_relative_to(here) else str(path))


def of_one_host(outcome: Outcome, style: Style) -> str:
    """How a job ended whose hosts start their own ranks, on one that is not the first: the first tells the rest."""
    plan = outcome.plan
    host = plan.hosts[plan.node or 0].name
    return f"{_headline(outcome, outcome.verdict.step, style)}\n  {host} of {len(plan.hosts)} hosts; {plan.run_dir}"


def _headline(outcome: Outcome, step: int, style: Style) -> str:
    verdict, name = outcome.verdict, outcome.plan.name
    took = format_seconds(outcome.seconds)
    if verdict.state == "completed":
        return f"{style.paint('completed', 'green', bold=True)}: {name} trained {step} steps in {took}"
    if verdict.state == "stopped":
        how = f" by {name_of(verdict.code - 128)}" if outcome.trained and verdict.code > 128 else ""
        return f"{style.paint('stopped', 'yellow', bold=True)}{how} after {took} at step {step}: {verdict.reason}"
    who = (
        f" on rank {verdict.rank}" + (f" ({verdict.host})" if verdict.host else "") if verdict.rank is not None else ""
    )
    return f"{style.paint('failed', 'red', bold=True)}{who} at step {step}: {verdict.reason}"


def _losses(record: Record) -> list[tuple[str, str]]:
    """One line: the training loss from first to last, and what the held-out part says."""
    parts = []
    losses, evals = record.points("step", "loss"), record.points("eval", "loss")
    if losses:
        parts.append(f"{losses[0][1]:.3f} at step {losses[0][0]:g}, {losses[-1][1]:.3f} at step {losses[-1][0]:g}")
    if evals:
        entropy = record.points("eval", "unigram_entropy")
        beside = f" (unigram entropy {entropy[-1][1]:.3f}: what frequencies alone give)" if entropy else ""
        parts.append(f"held-out loss {evals[-1][1]:.3f}{beside}")
    return [("loss", "; ".join(parts))] if parts else []


_PARTS = ("data", "forward", "backward", "optimizer", "pipeline")


def _speed(record: Record, s: Summary) -> list[tuple[str, str]]:
    """Medians, and where the time of a step goes."""
    found = []
    if s.tokens_per_second is not None:
        mfu = f", MFU {100 * s.mfu:.1f}%" if s.mfu is not None else ""
        found.append(("speed", f"{format_count(s.tokens_per_second)} tokens/s{mfu}"))
    if s.step_seconds:
        medians = [(name, middle(record.values(f"seconds_{name}"))) for name in _PARTS]
        shares = [f"{name} {100 * value / s.step_seconds:.0f}%" for name, value in medians if value is not None]
        found.append(("a step", format_seconds(s.step_seconds) + (f": {', '.join(shares)}" if shares else "")))
    return found


def _memory(record: Record) -> list[tuple[str, str]]:
    """What rank 0 had at most, beside what was planned."""
    told = []
    for name, (planned, peak) in measured(record):
        told.append(f"{name} {format_bytes(peak)}" + (f" (planned {format_bytes(planned)})" if planned else ""))
    return [("memory", ", ".join(told) + " on rank 0")] if told else []


def _slow(record: Record, verdict: Verdict) -> list[tuple[str, str]]:
    """Nothing of a run that failed: how to make it quicker is not what somebody asks then."""
    lines = summary_lines(diagnose(record)) if verdict.state != "failed" else []
    return [("slow", "; ".join(lines))] if lines else []


def _kept(outcome: Outcome, report: Path | None) -> list[tuple[str, str]]:
    """The run directory itself where nothing below it is named."""
    run_dir = outcome.plan.run_dir
    if not outcome.trained:
        return [("run directory", relative(run_dir))]
    kept = [("checkpoint", relative(outcome.checkpoint) if outcome.checkpoint else "none was completed")]
    if outcome.export:
        kept.append(("export", relative(outcome.export)))
    kept.append(("report", relative(report)) if report else ("run directory", relative(run_dir)))
    if outcome.verdict.state == "failed":
        kept.append(("log", relative(run_dir / "logs" / "launcher.log")))
    return kept


def _next(outcome: Outcome) -> list[str]:
    run_dir = shlex.quote(relative(outcome.plan.run_dir))
    if outcome.verdict.state == "completed":
        done = [f"harness report {run_dir}"] if outcome.export else [f"harness export {run_dir} OUT"]
        return [f"Next: {done[0]}"]
    if outcome.checkpoint:
        return [f"To go on: the same command with `--resume {run_dir}`"]
    return ["To start anew: the same command"] if outcome.verdict.state == "stopped" else []


def _environment(plan: LaunchPlan) -> list[str]:
    return _columns([(printable(f"{v.name}={shown(v)}"), v.origin) for v in plan.variables])


def _ready(plan: LaunchPlan, ready: bool) -> str:
    if not plan.ops:
        return "  nothing to compile"
    elsewhere = "on each host, in one process there, before any rank starts"
    if not plan.trains_here:
        return f"  this machine has no ranks; would be compiled {elsewhere}"
    first = "compiled already" if ready else "would be compiled first, in one process"
    return f"  {first}" if plan.local else f"  {first}; where they are not, {elsewhere}"


def _command(argv: tuple[str, ...]) -> list[str]:
    """One option a line, so that a long command can be read."""
    lines, current = [], shlex.quote(argv[0])
    for word in argv[1:]:
        if word.startswith("--") or word.endswith(".py"):
            lines.append(current)
            current = "  " + shlex.quote(word)
        else:
            current += " " + shlex.quote(word)
    lines.append(current)
    return ["  " + printable(line) + (" \\" if line is not lines[-1] else "") for line in lines]


def _span(ranks: tuple[int, ...]) -> str:
    return f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"


def _block(title: str, lines: list[str]) -> str:
    return "\n".join([title, *lines])


def _columns(pairs: list[tuple[str, str]]) -> list[str]:
    width = min(60, max((len(left) for left, _ in pairs), default=0))
    return [f"  {left.ljust(width)}  {right}".rstrip() for left, right in pairs]
