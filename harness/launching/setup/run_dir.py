# SPDX-License-Identifier: Apache-2.0
"""Writes the run directory, all of it or nothing, and finds earlier ones. Decides no content."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from harness.errors import ExitCode, UserError, user_error
from harness.file_io import read_umask, write_atomically
from harness.findings import Finding, Fix
from harness.launching.setup.environment import SECRETS_FILE
from harness.launching.setup.launch_plan import LaunchPlan
from harness.locks import RUN_LOCK, Lock, LockHeld
from harness.run_records.run_files import json_of

SUBFOLDERS = ("logs", "status", "checkpoints")


def new_run_dir(output_dir: Path, name: str) -> Path:
    """A path that does not exist yet: NAME-YYYYmmdd-HHMMSS, and a number after it in the same second."""
    base = output_dir / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidate, number = base, 2
    while candidate.exists():
        candidate = base.with_name(f"{base.name}-{number}")
        number += 1
    return candidate


def write_run_dir(plan: LaunchPlan) -> None:
    """Write all files into a temporary folder, then rename it: a run directory that exists is complete.

    The link `latest` in the parent folder then points to it. Raises UserError when it cannot be written.
    """
    parent = plan.run_dir.parent
    scratch: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
        for folder in SUBFOLDERS:
            (scratch / folder).mkdir()
        for name, text in plan.files().items():
            (scratch / name).touch(mode=0o600 if name == SECRETS_FILE else 0o666)
            (scratch / name).write_text(text, encoding="utf-8")
        (scratch / "launch.sh").chmod(0o777 & ~read_umask())
        scratch.chmod(0o777 & ~read_umask())  # until now nobody else could put a link in the place of a file
        scratch.rename(plan.run_dir)
    except OSError as error:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        raise UserError([_write_error_finding(plan.run_dir, error)], ExitCode.PREFLIGHT) from None
    update_latest_link(plan.run_dir)


def replace_files(plan: LaunchPlan) -> None:
    """Replace the files of a plan in its existing run directory. Raises OSError."""
    for name, text in plan.files().items():
        write_atomically(plan.run_dir / name, text, private=name == SECRETS_FILE)


def update_latest_link(run_dir: Path) -> None:
    """Point the link `latest` in the parent folder to this run directory; a file of that name stays."""
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


def list_runs(output_dir: Path, name: str) -> list[Path]:
    """The run directories of this name, the newest first."""
    run_dirs = sorted(output_dir.glob(f"{name}-*"), key=_creation_key, reverse=True)
    return [run_dir for run_dir in run_dirs if json_of(run_dir / "launch.json").get("name") == name]


def acquire_lock(run_dir: Path) -> Lock:
    """Hold a run directory against a second writer until `release`, over all attempts. Raises UserError (EN120)."""
    try:
        return Lock.acquire(run_dir / RUN_LOCK, f"harness launch of {run_dir.name}")
    except LockHeld as held:
        raise UserError([_in_use_finding(run_dir, str(held.holder or "another process"))], ExitCode.PREFLIGHT) from None
    except OSError as error:
        raise UserError([_write_error_finding(run_dir, error)], ExitCode.PREFLIGHT) from None


def read_ports(output_dir: Path) -> set[int]:
    """The rendezvous ports of the run directories in a folder; their shared memory is the harness's to remove."""
    ports = (json_of(file).get("port") for file in output_dir.glob("*/launch.json"))
    return {port for port in ports if type(port) is int and port}


def _creation_key(run_dir: Path) -> tuple[float, str]:
    try:
        return ((run_dir / "launch.json").stat().st_mtime, run_dir.name)
    except OSError:
        return (0.0, run_dir.name)


def _write_error_finding(run_dir: Path, error: OSError) -> Finding:
    reason = (error.strerror or str(error)).lower()
    return Finding(
        "EN011",
        "error",
        f"the run directory `{run_dir}` cannot be made: {reason}",
        key="launch.output_dir",
        fix=Fix("set `launch.output_dir` to a writable folder"),
    )


def _in_use_finding(run_dir: Path, holder: str) -> Finding:
    return Finding(
        "EN120",
        "error",
        f"`{run_dir}` is in use by {holder}",
        notes=("two writers would mix their metrics and overwrite each other's checkpoints",),
        fix=Fix("wait until it has ended"),
    )


def make_output_folder(path: Path, owner: str) -> Path:
    """Make the folder that `--folder` has named for the `owner`; its absolute path. Raises UserError (EN011)."""
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder `{path}` of the {owner} cannot be created: {(error.strerror or str(error)).lower()}"
        raise user_error("EN011", message, fix="name a writable folder with `--folder`", code=ExitCode.USAGE) from None
    return path
