# SPDX-License-Identifier: Apache-2.0
"""The run directories of a folder, and the one that a path or a name refers to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.run_records.run_record import read_run_record
from harness.run_records.summary import RunSummary, summarise_run

RUN_DIR_MARKERS = ("spec.resolved.json", "metrics.jsonl", "spec.yaml")
OUTPUT_DIR = "runs"
"""The default of `launch.output_dir`."""


def is_run_dir(folder: Path) -> bool:
    """Does a folder hold a file of a launch?"""
    return any((folder / marker).is_file() for marker in RUN_DIR_MARKERS)


def list_run_summaries(folder: Path) -> list[RunSummary]:
    """The runs of a folder, the newest first; for a run directory, itself. Raises UserError when there is no folder."""
    if is_run_dir(folder):
        return [summarise_run(read_run_record(folder, brief=True))]
    try:
        run_dirs = [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        fix = Fix("name the folder of `launch.output_dir`, such as `runs`")
        raise UserError(
            [Finding("SP031", "error", f"`{folder}` cannot be read: {reason}", fix=fix)], ExitCode.USAGE
        ) from None
    summaries = [summarise_run(read_run_record(p, brief=True)) for p in run_dirs if is_run_dir(p)]
    return sorted(summaries, key=lambda s: (s.started or 0.0, s.name), reverse=True)


def find_run_dir(path_or_name: str) -> Path:
    """The run directory of a path to it or to a folder of several (its `latest`), or of a name below `runs`: the name
    of the directory, or its beginning, such as the run's name, then the newest. Raises UserError when there is none.
    """
    path = Path(path_or_name)
    for folder in (path, path / "latest", Path(OUTPUT_DIR) / path_or_name):
        if is_run_dir(folder):
            return folder
    matches = _match_run_dirs(Path(OUTPUT_DIR), path_or_name) if "/" not in path_or_name else []
    if matches:
        return matches[-1]
    reason = "is not a run directory" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
    names = _known_run_names(Path(OUTPUT_DIR))
    notes = (f"runs below `{OUTPUT_DIR}`: {', '.join(names)}",) if names else ()
    fix = Fix("name a run directory of `harness launch`, such as `runs/latest`; `harness runs` lists them")
    raise UserError([Finding("SP031", "error", f"`{path_or_name}` {reason}", notes=notes, fix=fix)], ExitCode.USAGE)


def _match_run_dirs(folder: Path, name: str) -> Sequence[Path]:
    """Run directories whose name starts with `name`, the newest last."""
    if not name or not folder.is_dir():
        return []
    matches = [p for p in folder.iterdir() if p.name.startswith(name) and not p.is_symlink() and is_run_dir(p)]
    return sorted(matches, key=_launch_time_and_path)


def _launch_time_and_path(folder: Path) -> tuple[float, Path]:
    launch_file = folder / "launch.json"
    return (launch_file.stat().st_mtime if launch_file.exists() else 0, folder)


def _known_run_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted((p.name for p in folder.iterdir() if not p.is_symlink() and is_run_dir(p)), reverse=True)[:5]
