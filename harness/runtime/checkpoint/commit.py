"""The write of a planned save and the agreement of all ranks on it. Runs on the training thread or on one of its own:
it touches no engine, and speaks to other ranks through the `gather` it is given.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints import manifest
from harness.checkpoints.choosing import LATEST, TRASH
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.manifest import FileRecord
from harness.checkpoints.retention import outdated, remove, steps_in
from harness.files import replace_file, sync_folder
from harness.findings import Finding
from harness.runtime.checkpoint.room import failed
from harness.runtime.checkpoint.writing import Part, sync_folders, write_parts
from harness.runtime.ranks import Ranks
from harness.spec.sections.running import CheckpointSpec

Gather = Callable[[Any], list[Any]]


@dataclass
class Plan:
    """A save: what this rank writes below `temporary`, what becomes of that folder, and the manifest without files."""

    step: int
    temporary: Path
    final: Path
    body: dict[str, Any]
    parts: list[Part]
    ranks: Ranks
    spec: CheckpointSpec
    protected: Path | None
    bytes: int = 0
    """Of all ranks."""


def make_folder(folder: Path) -> None:
    """An empty folder. Raises OSError."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def discard(folder: Path) -> None:
    """Remove what was written; what cannot be removed is no checkpoint, and goes with the next sweep."""
    shutil.rmtree(folder, ignore_errors=True)


def commit(plan: Plan, gather: Gather) -> Finding | None:
    """Write, agree, publish; the finding when it failed, the same on every rank. An error on any rank leaves earlier
    checkpoints and `latest` as they were.
    """
    ranks = plan.ranks
    records, error = _attempt(lambda: write_parts(plan.temporary, plan.parts, ranks.rank, 0))
    plan.parts = []
    answers = gather((records, error))
    wrong = _first_error(answers)
    if wrong is None and ranks.is_first:
        files = {name: record for written, _ in answers for name, record in written.items()}
        _, error = _attempt(lambda: _publish(plan, files))
        wrong = None if error is None else (0, error)
    if not ranks.is_first:
        return gather(None)[0]
    found = None
    if wrong is not None:
        rank, (number, reason) = wrong
        discard(plan.temporary)  # first: what it took counts as free
        found = failed(plan.step, plan.final.parent, rank, OSError(number, reason), plan.bytes)
    else:
        _prune(plan)
    return gather(found)[0]


def _attempt(work: Callable[[], Any]) -> tuple[Any, tuple[int | None, str] | None]:
    """What it returns, or the error as plain values; a rank that fails still answers the others."""
    try:
        return work(), None
    except OSError as error:
        return {}, (error.errno, error.strerror or str(error))
    except MemoryError:
        return {}, (None, "there is not enough host memory")


def _first_error(answers: list[Any]) -> tuple[int, tuple[int | None, str]] | None:
    return next(((rank, error) for rank, (_, error) in enumerate(answers) if error is not None), None)


def _publish(plan: Plan, files: dict[str, FileRecord]) -> None:
    """Manifest, rename, pointer; every step is on the disk before the next. Raises OSError."""
    known = Evaluations.read(plan.final.parent)
    body = {
        "name": plan.final.name,
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "layout": "shared",
        **plan.body,
        "evaluation": known.upto(plan.step).to_manifest(),
        "files": {name: files[name].to_json() for name in sorted(files)},
    }
    sync_folders(plan.temporary)
    manifest.write(plan.temporary, body)
    if plan.final.exists():  # an older run of this step, which a resume from before it has overtaken
        trash = plan.final.with_name(f"{TRASH}{plan.final.name}-{os.getpid()}")
        plan.final.rename(trash)
        plan.temporary.rename(plan.final)
        shutil.rmtree(trash, ignore_errors=True)
    else:
        plan.temporary.rename(plan.final)
    sync_folder(plan.final.parent)
    replace_file(plan.final.parent / LATEST, plan.final.name + "\n")


def _prune(plan: Plan) -> None:
    """Remove what need not be kept. What cannot be removed stays, and is tried again after the next save."""
    # A checkpoint of another shape, converted: from now on there is one in this run's own.
    shutil.rmtree(plan.final.parent / "universal", ignore_errors=True)
    folder, spec = plan.final.parent, plan.spec
    steps = steps_in(folder)
    best = Evaluations.read(folder).best_of(steps) if spec.keep_best else None
    protected = {step for step, path in steps.items() if path == plan.protected}
    for step in outdated(
        (s for s in steps if s <= plan.step),
        keep_last=spec.save_total_limit,
        keep_every=spec.keep_every_steps,
        best=best,
        protected={plan.step, *protected},
    ):
        try:
            remove(steps[step])
        except OSError:
            continue
