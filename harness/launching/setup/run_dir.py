"""Makes the run directory, whole or not at all, and finds earlier ones. Reads and writes files; decides no content."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.file_io import write_atomically
from harness.findings import Finding, Fix
from harness.launching.setup.launch_plan import LaunchPlan
from harness.locks import Lock, LockHeld
from harness.run_records.run_files import json_of

SUBFOLDERS = ("logs", "status", "checkpoints")
LOCK = "lock"
"""Held by the one supervisor, or by rank 0 of a run that was started by hand (`harness.runtime.run_lock`)."""


def new_run_dir(output_dir: Path, name: str) -> Path:
    """A path that does not exist yet: NAME-YYYYmmdd-HHMMSS, with a number behind it in the same second."""
    base = output_dir / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidate, number = base, 2
    while candidate.exists():
        candidate = base.with_name(f"{base.name}-{number}")
        number += 1
    return candidate


def write_run_dir(plan: LaunchPlan) -> None:
    """Write all files beside the final place, then rename: a run directory that exists is complete.

    Points `latest` beside it to the new one. Raises Refused when the file system does not let it.
    """
    parent = plan.run_dir.parent
    scratch: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
        scratch.chmod(0o777 & ~_umask())
        for folder in SUBFOLDERS:
            (scratch / folder).mkdir()
        for name, text in plan.files().items():
            (scratch / name).write_text(text, encoding="utf-8")
        (scratch / "launch.sh").chmod(0o777 & ~_umask())
        scratch.rename(plan.run_dir)
    except OSError as error:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        raise UserError([_write_error_finding(plan.run_dir, error)], ExitCode.PREFLIGHT) from None
    update_latest_link(plan.run_dir)


def replace_files(plan: LaunchPlan) -> None:
    """Put the files of another plan into its run directory, which exists. Raises OSError."""
    for name, text in plan.files().items():
        write_atomically(plan.run_dir / name, text)


def update_latest_link(run_dir: Path) -> None:
    """Let `latest` beside the run directory mean it; something else of that name is left alone."""
    link = run_dir.parent / "latest"
    if link.exists() and not link.is_symlink():
        return
    scratch = link.with_name(f".latest-{os.getpid()}")
    try:
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(run_dir.name)
        scratch.replace(link)
    except OSError:
        scratch.unlink(missing_ok=True)


def newest_complete_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run directory or of its `checkpoints` folder, or `folder` when it is one.

    A checkpoint is complete when it has `manifest.json`, which is written last.
    """
    if (folder / "manifest.json").is_file():
        return folder
    inside = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    steps = [p.parent for p in inside.glob("step-*/manifest.json")]
    return max(steps, key=lambda p: p.name, default=None)


def checkpoint_step(checkpoint: Path) -> int | None:
    """After how many steps a checkpoint was saved; None where its manifest does not say."""
    try:
        return int(json_of(checkpoint / "manifest.json")["state"]["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def remove_unfinished_saves(run_dir: Path) -> list[Path]:
    """Remove what a save that was killed left (`.tmp-*`), which nothing can read and may be large; returns those.

    Only for a run that has ended. One with a manifest is whole, lacks nothing but its name, and is left alone.
    """
    left = [p for p in (run_dir / "checkpoints").glob(".tmp-*") if not (p / "manifest.json").exists()]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return left


def list_runs(output_dir: Path, name: str) -> list[Path]:
    """The run directories of this name, the newest first."""
    found = sorted(output_dir.glob(f"{name}-*"), key=_creation_key, reverse=True)
    return [run_dir for run_dir in found if _is_run_of(run_dir, name)]


def acquire_lock(run_dir: Path) -> Lock:
    """Hold a run directory against a second writer until `release`, over all attempts. Raises Refused (EN120)."""
    try:
        return Lock.acquire(run_dir / LOCK, f"harness launch of {run_dir.name}")
    except LockHeld as held:
        raise UserError([_in_use_finding(run_dir, str(held.holder or "another process"))], ExitCode.PREFLIGHT) from None
    except OSError as error:
        raise UserError([_write_error_finding(run_dir, error)], ExitCode.PREFLIGHT) from None


def read_ports(output_dir: Path) -> set[int]:
    """The rendezvous ports of the run directories in a folder: what those runs left in /dev/shm is ours to remove."""
    ports = (json_of(file).get("port") for file in output_dir.glob("*/launch.json"))
    return {port for port in ports if type(port) is int and port}


def _is_run_of(run_dir: Path, name: str) -> bool:
    return json_of(run_dir / "launch.json").get("name") == name


def _creation_key(run_dir: Path) -> tuple[float, str]:
    try:
        return ((run_dir / "launch.json").stat().st_mtime, run_dir.name)
    except OSError:
        return (0.0, run_dir.name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_error_finding(run_dir: Path, error: OSError) -> Finding:
    reason = (error.strerror or str(error)).lower()
    return Finding(
        "EN011",
        "error",
        f"the run directory `{run_dir}` cannot be made: {reason}",
        key="launch.output_dir",
        fix=Fix("set `launch.output_dir` to a folder that can be written"),
    )


def _in_use_finding(run_dir: Path, holder: str) -> Finding:
    return Finding(
        "EN120",
        "error",
        f"`{run_dir}` is in use by {holder}",
        notes=("two writers would mix their metrics and overwrite each other's checkpoints",),
        fix=Fix("wait until it has ended"),
    )
