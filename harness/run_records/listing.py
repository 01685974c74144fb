"""Which run directories there are: all of a folder, and the one that a person means. Opens no more than it must."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.run_records.run_record import read_run_record
from harness.run_records.summary import RunSummary, summarise_run

RUN_DIR_MARKERS = ("spec.resolved.json", "metrics.jsonl", "spec.yaml")
OUTPUT_DIR = "runs"
"""`launch.output_dir` where a spec does not say."""


def is_run_dir(folder: Path) -> bool:
    """Does a folder look like one that a launch made?"""
    return any((folder / mark).is_file() for mark in RUN_DIR_MARKERS)


def list_run_summaries(folder: Path) -> list[RunSummary]:
    """The runs of a folder, the newest first; of a run directory, itself. Raises Refused when there is no folder."""
    if is_run_dir(folder):
        return [summarise_run(read_run_record(folder, brief=True))]
    try:
        inside = [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        fix = Fix("name the folder that `launch.output_dir` says, such as `runs`")
        raise UserError(
            [Finding("SP031", "error", f"`{folder}` cannot be read: {what}", fix=fix)], ExitCode.USAGE
        ) from None
    found = [summarise_run(read_run_record(p, brief=True)) for p in inside if is_run_dir(p)]
    return sorted(found, key=lambda s: (s.started or 0.0, s.name), reverse=True)


def find_run_dir(asked: str) -> Path:
    """The run directory that is meant: a path to one, a folder of several (its `latest`), or a name below `runs`: of
    the directory, its beginning, or of the run, then the newest. Raises Refused when there is none.
    """
    path = Path(asked)
    for folder in (path, path / "latest", Path(OUTPUT_DIR) / asked):
        if is_run_dir(folder):
            return folder
    named = _match_run_dirs(Path(OUTPUT_DIR), asked) if "/" not in asked else []
    if named:
        return named[-1]
    what = "is not a run directory" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
    near = _known_run_names(Path(OUTPUT_DIR))
    notes = (f"runs below `{OUTPUT_DIR}`: {', '.join(near)}",) if near else ()
    fix = Fix("name a folder that `harness launch` made, such as `runs/latest`; `harness runs` lists them")
    raise UserError([Finding("SP031", "error", f"`{asked}` {what}", notes=notes, fix=fix)], ExitCode.USAGE)


def _match_run_dirs(folder: Path, name: str) -> Sequence[Path]:
    """Run directories whose name begins so, the newest last."""
    if not name or not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if p.name.startswith(name) and not p.is_symlink() and is_run_dir(p)]
    return sorted(found, key=lambda p: ((p / "launch.json").stat().st_mtime if (p / "launch.json").exists() else 0, p))


def _known_run_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted((p.name for p in folder.iterdir() if not p.is_symlink() and is_run_dir(p)), reverse=True)[:5]
