"""What `--resume` means: which checkpoint a launch goes on from, what was passed over on the way, and why not at all.

Reads checkpoints' manifests and bytes, never their tensors; writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.choosing import checkpoints_folder, named_in, newest_complete, problems
from harness.checkpoints.compare import compare
from harness.checkpoints.manifest import read
from harness.errors import Exit, Refused
from harness.findings import Finding, Fix
from harness.launching.rundir import LOCK, runs_of
from harness.locks import held_by

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint to go on from (None: start anew), and the run directory or folder that it was found in."""

    checkpoint: Path | None = None
    origin: Path | None = None


def resume_from(
    asked: str, output_dir: Path, name: str, spec: Mapping[str, Any], allowed: tuple[str, ...], tell: Tell
) -> Resume:
    """`never`: nothing. `auto`: the newest complete checkpoint among this spec's earlier runs, if any has one. Else a
    run directory or a checkpoint.

    Every byte of the chosen one is verified, and `tell` is told of each that was passed over. Raises Refused when a
    named one is not complete (CK001, CK101 ...), when the spec has changed in a way that breaks continuity (CK107 ...)
    or when the run that would be gone on from still runs (EN122).
    """
    if asked == "never":
        return Resume()
    found = _newest_of(output_dir, name, tell) if asked == "auto" else _named(Path(asked), asked, tell)
    if found.checkpoint is not None:
        _compare(found.checkpoint, spec, allowed, tell)
    return found


def newest_in(run_dir: Path, tell: Tell) -> Path | None:
    """The newest complete checkpoint of a run directory, verified byte by byte; tells what it passes over."""
    chosen, skipped = newest_complete(run_dir / "checkpoints")
    for path, reason in skipped:
        tell(f"passed over {path}: {reason}")
    return chosen


def _newest_of(output_dir: Path, name: str, tell: Tell) -> Resume:
    """The newest run that has a complete checkpoint wins; one that still runs is in the way."""
    for run_dir in runs_of(output_dir, name):
        holder = held_by(run_dir / LOCK)
        if holder is not None:
            raise Refused([_still_runs(run_dir, str(holder))], Exit.PREFLIGHT)
        checkpoint = newest_in(run_dir, tell)
        if checkpoint is not None:
            return Resume(checkpoint.resolve(), run_dir)
    return Resume()


def _named(folder: Path, asked: str, tell: Tell) -> Resume:
    if not folder.is_dir():
        raise Refused([_none(asked, "is not a folder")])
    inside = checkpoints_folder(folder)
    if inside != folder.parent:
        checkpoint, skipped = newest_complete(inside)
        for path, reason in skipped:
            tell(f"passed over {path}: {reason}")
        if checkpoint is None:
            raise Refused([_none(asked, "has no complete checkpoint")])
        return Resume(checkpoint.resolve(), folder)
    wrong = [f for f in problems(folder) if f.is_error]
    if wrong:
        others = [p for p in named_in(inside) if p != folder and not any(f.is_error for f in problems(p))]
        hint = Finding(
            "CK001",
            "error",
            f"`{asked}` is not a complete checkpoint",
            fix=Fix(f"go on from the newest complete one beside it: --resume {others[0]}")
            if others
            else Fix("no complete one is beside it; name another run directory, or leave `--resume` out to start anew"),
        )
        raise Refused([*wrong, hint])
    return Resume(folder.resolve(), folder)


def _compare(checkpoint: Path, spec: Mapping[str, Any], allowed: tuple[str, ...], tell: Tell) -> None:
    """The rank compares again, with the hashes of what it loads; another shape is its to convert or to refuse."""
    findings = compare(read(checkpoint), spec, allowed=allowed).findings(str(checkpoint), reshaping=True)
    errors = [f for f in findings if f.is_error]
    if errors:
        raise Refused(errors)
    for finding in findings:
        tell(finding.message)


def _none(asked: str, what: str) -> Finding:
    fix = Fix("name a run directory or a checkpoint that has `manifest.json`")
    return Finding("CK001", "error", f"`{asked}` {what}", fix=fix)


def _still_runs(run_dir: Path, holder: str) -> Finding:
    return Finding(
        "EN122",
        "error",
        f"the newest run of this spec, `{run_dir}`, still runs: {holder}",
        notes=(
            "two runs from one checkpoint would train the same twice, and the older one prunes what the other reads",
        ),
        fix=Fix("wait for it or stop it; `--resume never` starts another run from the beginning"),
    )
