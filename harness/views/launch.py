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
from harness.units import format_count, format_seconds
from harness.views.style import Style

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
        _block(f"Command, in {plan.folder}", _command(plan.argv)),
        _block("Ranks by host", _columns([(h.name, _span(h.ranks)) for h in plan.hosts])),
    ]
    if plan.resume:
        blocks.insert(1, f"Goes on from {plan.resume}")
    if not plan.local:
        blocks.append("The run directory must be on a file system that every host sees under the same path.")
    return "\n\n".join([*blocks, _LAST_WORDS])


def summary(
    outcome: Outcome, rows: Mapping[str, Mapping[str, Any]], sample: str, report: Path | None, style: Style
) -> str:
    """How the run ended, its losses, what is kept where, and the commands that come next."""
    step = max(outcome.verdict.step, int((rows.get("step") or {}).get("step") or 0))
    lines = [_headline(outcome, step, style), *(f"  note: {note}" for note in outcome.verdict.notes)]
    lines += [f"  {left:<15} {right}" for left, right in [*_losses(rows), *_kept(outcome, report)]]
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
    rows: Mapping[str, Mapping[str, Any]],
    report: Path | None,
    diagnosis: Mapping[str, object] | None = None,
) -> str:
    """The same for programs. `diagnosis` is what the log of a failed run tells."""
    verdict = outcome.verdict
    body = {
        "format_version": 1,
        "state": verdict.state,
        "exit_code": int(verdict.code),
        "reason": verdict.reason or None,
        "rank": verdict.rank,
        "host": verdict.host or None,
        "step": verdict.step,
        "seconds": round(outcome.seconds, 3),
        "attempts": outcome.attempts,
        "run_dir": str(outcome.plan.run_dir),
        "checkpoint": str(outcome.checkpoint) if outcome.checkpoint else None,
        "export": str(outcome.export) if outcome.export else None,
        "report": str(report) if report else None,
        "last": {kind: rows[kind] for kind in ("step", "eval") if kind in rows},
        "notes": list(verdict.notes),
        "diagnosis": diagnosis,
    }
    return json.dumps(body, indent=2)


def relative(path: Path) -> str:
    """A path as seen from the current folder where it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


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


def _losses(rows: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    found = []
    first, last, held_out = rows.get("first_step"), rows.get("step"), rows.get("eval")
    if first and last and isinstance(first.get("loss"), float) and isinstance(last.get("loss"), float):
        speed = (
            f", {format_count(last['tokens_per_second'])} tokens/s at the end" if last.get("tokens_per_second") else ""
        )
        found.append(
            (
                "training loss",
                f"{first['loss']:.3f} at step {first['step']}, {last['loss']:.3f} at step {last['step']}{speed}",
            )
        )
    if held_out and isinstance(held_out.get("loss"), float):
        entropy = held_out.get("unigram_entropy")
        beside = (
            f"; unigram entropy {entropy:.3f} (what knowing only the frequencies gives)"
            if isinstance(entropy, float)
            else ""
        )
        found.append(("held-out loss", f"{held_out['loss']:.3f} nats per token at step {held_out['step']}{beside}"))
    return found


def _kept(outcome: Outcome, report: Path | None) -> list[tuple[str, str]]:
    if not outcome.trained:
        return [("run directory", relative(outcome.plan.run_dir))]
    kept = [("run directory", relative(outcome.plan.run_dir))]
    kept.append(("checkpoint", relative(outcome.checkpoint) if outcome.checkpoint else "none was completed"))
    if outcome.export:
        kept.append(("export", relative(outcome.export)))
    if report:
        kept.append(("report", relative(report)))
    if outcome.verdict.state == "failed":
        kept.append(("log", relative(outcome.plan.run_dir / "logs" / "launcher.log")))
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
    return _columns([(f"{v.name}={shown(v)}", v.origin) for v in plan.variables])


def _ready(plan: LaunchPlan, ready: bool) -> str:
    if not plan.ops:
        return "  nothing to compile"
    if not plan.trains_here:
        return "  this machine has no ranks, the hosts compile them at first use"
    return "  compiled already" if ready else "  would be compiled first, in one process"


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
    return ["  " + line + (" \\" if line is not lines[-1] else "") for line in lines]


def _span(ranks: tuple[int, ...]) -> str:
    return f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"


def _block(title: str, lines: list[str]) -> str:
    return "\n".join([title, *lines])


def _columns(pairs: list[tuple[str, str]]) -> list[str]:
    width = min(60, max((len(left) for left, _ in pairs), default=0))
    return [f"  {left.ljust(width)}  {right}".rstrip() for left, right in pairs]
