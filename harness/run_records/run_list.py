# SPDX-License-Identifier: Apache-2.0
"""The run directories of a folder, and the one that a path or a name refers to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.run_records.run_record import read_run_record
from harness.run_records.summary import RunSummary, summarise_run
from harness.verdicts import read_verdict

RUN_DIR_MARKERS = ("spec.resolved.json", "metrics.jsonl", "spec.yaml", "engine_checks.json")
OUTPUT_DIR = "runs"
"""The default of `launch.output_dir`."""


def is_run_dir(folder: Path) -> bool:
    """Does a folder hold a file of a launch? False for a folder of somebody else that cannot be read."""
    try:
        return any((folder / marker).is_file() for marker in RUN_DIR_MARKERS)
    except OSError:
        return False


def list_run_summaries(folder: Path) -> list[RunSummary]:
    """The trainings of a folder, that of the newest launch first, each with the branches that left it behind it; for a
    run directory, itself. Raises UserError when there is no folder.
    """
    return _with_branches(_join_trainings(list_runs_by_launch(folder)))


def list_runs_by_launch(folder: Path) -> list[RunSummary]:
    """The runs of a folder by themselves, the newest launch first; otherwise like `list_run_summaries`."""
    if is_run_dir(folder):
        return [summarise_run(read_run_record(folder, brief=True))]
    try:
        run_dirs = [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    except OSError as error:
        fix = Fix("name the folder of `launch.output_dir`, such as `runs`, or a run in it")
        raise _unreadable_error(folder, error, fix) from None
    summaries = [summarise_run(read_run_record(p, brief=True)) for p in run_dirs if is_run_dir(p)]
    return sorted(summaries, key=lambda s: (s.started or 0.0, s.name), reverse=True)


def _join_trainings(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Of runs, the newest first, one summary for each training: that of the run which runs, else of the newest."""
    trainings: dict[str, list[RunSummary]] = {}
    for run in runs:
        trainings.setdefault(run.training, []).append(run)
    joined = []
    for members in trainings.values():
        newest = next((run for run in members if run.state == "running"), members[0])
        parts = tuple(run.name for run in reversed(members))
        tags = tuple(dict.fromkeys(tag for run in reversed(members) for tag in run.tags))
        note = next((run.note for run in members if run.note), "")
        attempts = sum(run.attempts for run in members)
        branch_of = next((run.branch_of for run in members if run.branch_of), None)
        joined.append(replace(newest, parts=parts, attempts=attempts, tags=tags, note=note, branch_of=branch_of))
    return joined


def _with_branches(trainings: Sequence[RunSummary]) -> list[RunSummary]:
    """In the same order, but each branch behind the training that it left."""
    names = {run.training for run in trainings}
    branches: dict[str, list[RunSummary]] = {}
    for run in trainings:
        if run.branch_of in names - {run.training}:
            branches.setdefault(str(run.branch_of), []).append(run)
    behind = {run.training for group in branches.values() for run in group}
    listed, waiting = list[RunSummary](), [run for run in trainings if run.training not in behind][::-1]
    while waiting:
        listed.append(run := waiting.pop())
        waiting += branches.pop(run.training, [])[::-1]
    return listed + [run for group in branches.values() for run in group]  # in a ring, which no launch makes


def find_run_dir(path_or_name: str) -> Path:
    """The run directory of a path to it or to a folder of several (its `latest`), or of a name below `runs`. The
    name is that of the directory, or its beginning, such as the run's name; the newest match counts. Raises UserError
    if there is none.
    """
    path = Path(path_or_name)
    run_dir = _run_dir_of_path(path) or find_run_by_name(path_or_name)
    if run_dir is not None:
        return run_dir
    exists = path_exists(path)
    reason = "does not exist" if not exists else "is not a run directory" if path.is_dir() else "is not a folder"
    notes = known_runs_notes()
    title = "name a run directory of `harness launch`, or `latest`; `harness runs` lists them"
    fix = Fix(title if notes or exists else f"{title}, and `harness launch SPEC` starts one")
    finding = Finding("SP031", "error", f"`{path_or_name}` {reason}", notes=notes, fix=fix)
    raise UserError([finding], ExitCode.USAGE)


def resolve_run_path(path_or_name: str, output_dir: Path = Path(OUTPUT_DIR)) -> Path:
    """A path where it exists, and where it does not, the run of that name; for commands that also take a checkpoint or
    a log. A folder of several runs means its `latest`. What is neither is returned as it is. Raises UserError for
    a path that cannot be looked up.
    """
    path = Path(path_or_name)
    if path_exists(path):
        return _run_dir_of_path(path) or path
    return find_run_by_name(path_or_name, output_dir) or path


def path_exists(path: Path) -> bool:
    """Is there a file or a folder? Raises UserError for a path that cannot be looked up, as in a private folder."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable_error(path, error, Fix("name a run directory that you may read")) from None
    return True


def find_run_by_name(name: str, output_dir: Path = Path(OUTPUT_DIR)) -> Path | None:
    """The run directory in `output_dir` that has this name, such as `latest`, or the newest whose name begins so."""
    if not name or "/" in name:
        return None
    if is_run_dir(output_dir / name):
        return output_dir / name
    matches = sorted((p for p in _run_dirs_in(output_dir) if p.name.startswith(name)), key=_launch_time_and_path)
    return matches[-1] if matches else None


def known_runs_notes(output_dir: Path = Path(OUTPUT_DIR)) -> tuple[str, ...]:
    """A note with the newest run directories of a folder, for a finding; none where there is no run."""
    names = sorted((p.name for p in _run_dirs_in(output_dir)), reverse=True)[:5]
    return (f"runs below `{output_dir}`: {', '.join(names)}",) if names else ()


def fix_for_no_checkpoint(path: Path) -> Fix:
    """A fix that says what to name in the place of a path without a checkpoint."""
    if not is_run_dir(path):
        return Fix("name a run, such as `latest`, or one of its `checkpoints/step-*`")
    if read_verdict(path) is None:
        return Fix("wait for its first save, or name another run: `harness runs` lists them")
    return Fix("name another run (`harness runs` lists them); `checkpoint.save_steps` saves during one")


def _run_dir_of_path(path: Path) -> Path | None:
    return next((folder for folder in (path, path / "latest") if is_run_dir(folder)), None)


def _unreadable_error(path: Path, error: OSError, fix: Fix) -> UserError:
    message = f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}"
    return UserError([Finding("SP031", "error", message, fix=fix)], ExitCode.USAGE)


def _launch_time_and_path(folder: Path) -> tuple[float, Path]:
    launch_file = folder / "launch.json"
    return (launch_file.stat().st_mtime if launch_file.exists() else 0, folder)


def _run_dirs_in(folder: Path) -> list[Path]:
    """The run directories of a folder without its links, such as `latest`; none where it cannot be read."""
    try:
        return [p for p in folder.iterdir() if not p.is_symlink() and is_run_dir(p)]
    except OSError:
        return []
