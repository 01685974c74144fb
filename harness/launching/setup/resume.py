"""What `--resume` means: which checkpoint a launch goes on from, what was passed over on the way, and why not at all.

Reads checkpoints' manifests and bytes, never their tensors; writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.latest import checkpoints_folder, find_latest_verified, list_checkpoints, verify_with_name
from harness.checkpoints.manifest import read_manifest
from harness.checkpoints.resume_compatibility import compare_with_run
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.launching.setup.run_dir import LOCK, list_runs
from harness.locks import current_holder

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """The checkpoint to go on from (None: start anew), and the run directory or folder that it was found in."""

    checkpoint: Path | None = None
    origin: Path | None = None


def resolve_resume(
    asked: str, output_dir: Path, name: str, spec: Mapping[str, Any], allowed: tuple[str, ...], tell: Log
) -> ResumeSource:
    """`never`: nothing. `auto`: the newest complete checkpoint among this spec's earlier runs, if any has one. Else a
    run directory or a checkpoint.

    Every byte of the chosen one is verified, and `tell` is told of each that was passed over. Raises Refused when a
    named one is not complete (CK001, CK101 ...), when the spec has changed in a way that breaks continuity (CK107 ...)
    or when the run that would be gone on from still runs (EN122).
    """
    if asked == "never":
        return ResumeSource()
    found = _resume_newest_run(output_dir, name, tell) if asked == "auto" else _resume_named(Path(asked), asked, tell)
    if found.checkpoint is not None:
        _check_continuity(found.checkpoint, spec, allowed, tell)
    return found


def find_newest_checkpoint(run_dir: Path, tell: Log) -> Path | None:
    """The newest complete checkpoint of a run directory, verified byte by byte; tells what it passes over."""
    chosen, skipped = find_latest_verified(run_dir / "checkpoints")
    for path, reason in skipped:
        tell(f"passed over {path}: {reason}")
    return chosen


def _resume_newest_run(output_dir: Path, name: str, tell: Log) -> ResumeSource:
    """The newest run that has a complete checkpoint wins; one that still runs is in the way."""
    for run_dir in list_runs(output_dir, name):
        holder = current_holder(run_dir / LOCK)
        if holder is not None:
            raise UserError([_still_running_finding(run_dir, str(holder))], ExitCode.PREFLIGHT)
        checkpoint = find_newest_checkpoint(run_dir, tell)
        if checkpoint is not None:
            return ResumeSource(checkpoint.resolve(), run_dir)
    return ResumeSource()


def _resume_named(folder: Path, asked: str, tell: Log) -> ResumeSource:
    if not folder.is_dir():
        raise UserError([_no_checkpoint_finding(asked, "is not a folder")])
    inside = checkpoints_folder(folder)
    if inside != folder.parent:
        checkpoint, skipped = find_latest_verified(inside)
        for path, reason in skipped:
            tell(f"passed over {path}: {reason}")
        if checkpoint is None:
            raise UserError([_no_checkpoint_finding(asked, "has no complete checkpoint")])
        return ResumeSource(checkpoint.resolve(), folder)
    wrong = [f for f in verify_with_name(folder) if f.is_error]
    if wrong:
        others = [
            p for p in list_checkpoints(inside) if p != folder and not any(f.is_error for f in verify_with_name(p))
        ]
        hint = Finding(
            "CK001",
            "error",
            f"`{asked}` is not a complete checkpoint",
            fix=Fix(f"go on from the newest complete one beside it: --resume {others[0]}")
            if others
            else Fix("no complete one is beside it; name another run directory, or leave `--resume` out to start anew"),
        )
        raise UserError([*wrong, hint])
    return ResumeSource(folder.resolve(), folder)


def _check_continuity(checkpoint: Path, spec: Mapping[str, Any], allowed: tuple[str, ...], tell: Log) -> None:
    """The rank compares again, with the hashes of what it loads; another shape is its to convert or to refuse."""
    findings = compare_with_run(read_manifest(checkpoint), spec, allowed=allowed).to_findings(
        str(checkpoint), can_reshard=True
    )
    errors = [f for f in findings if f.is_error]
    if errors:
        raise UserError(errors)
    for finding in findings:
        tell(finding.message)


def _no_checkpoint_finding(asked: str, what: str) -> Finding:
    fix = Fix("name a run directory or a checkpoint that has `manifest.json`")
    return Finding("CK001", "error", f"`{asked}` {what}", fix=fix)


def _still_running_finding(run_dir: Path, holder: str) -> Finding:
    return Finding(
        "EN122",
        "error",
        f"the newest run of this spec, `{run_dir}`, still runs: {holder}",
        notes=(
            "two runs from one checkpoint would train the same twice, and the older one prunes what the other reads",
        ),
        fix=Fix("wait for it or stop it; `--resume never` starts another run from the beginning"),
    )
