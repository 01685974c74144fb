# SPDX-License-Identifier: Apache-2.0
"""The earlier runs of a spec, and the one that `--resume auto` continues.

A run resumed from a checkpoint of another, or began at step 0: `launch.json` and `resume.json` have it. Compares
manifests; reads no tensors and logs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.change_meanings import BATCH_KEYS
from harness.checkpoints.effective_settings import saved_global_batch
from harness.checkpoints.latest import find_latest, list_checkpoints, step_in_name
from harness.checkpoints.manifest import Manifest, read_manifest
from harness.checkpoints.resume_compatibility import changed_settings, format_value, is_allowed
from harness.checkpoints.store_source import StoreSource
from harness.errors import UserError, user_error
from harness.findings import Finding, Fix
from harness.locks import RUN_LOCK, current_holder
from harness.run.batch_sizes import BatchSizes, keep_global_batch
from harness.run.resolved_run import ResolvedRun
from harness.run_records.run_files import json_of
from harness.training_lineage import read_training_part
from harness.verdicts import Verdict, read_verdict

_BATCH_KEYS = tuple(f"train.{key}" for key in BATCH_KEYS)


@dataclass(frozen=True, slots=True)
class WantedSpec:
    """The spec of the run that resumes, the changes that it allows, and its batch, if that is known."""

    values: Mapping[str, Any]
    allowed: Collection[str] = ()
    run: ResolvedRun | None = None
    keeps_batch: bool = True
    """May it keep a checkpoint's global batch by other accumulation steps?"""

    def kept_batch(self, saved: int | None) -> BatchSizes | None:
        """The global batch of a checkpoint in this run, where its spec leaves the accumulation steps open and they make
        it.
        """
        if self.run is None or not self.keeps_batch or saved is None:
            return None
        train, batch = self.run.spec.train, self.run.batch
        is_open = train.global_batch_size is None and train.gradient_accumulation_steps is None
        if not is_open or saved == batch.global_batch or is_allowed(self.allowed, "train.global_batch_size"):
            return None
        return keep_global_batch(batch, self.run.parallel_dims.data, saved)

    def changes_from(self, saved: Mapping[str, Any], saved_batch: int | None) -> dict[str, Any]:
        """The settings of the training that another spec has otherwise, allowed or not. Of the batch its size is
        compared, where both are known: a run that lost hosts has it written in other keys.
        """
        changes = changed_settings(saved, self.values)
        batch = self.kept_batch(saved_batch) or (self.run.batch if self.run is not None else None)
        if saved_batch is None or batch is None or batch.global_batch is None:
            return changes
        changes = {key: value for key, value in changes.items() if key not in _BATCH_KEYS}
        return changes if batch.global_batch == saved_batch else {**changes, "train.global_batch_size": saved_batch}


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run directory that has a checkpoint, came from one, or is in use."""

    run_dir: Path
    step: int | None
    """Of its newest checkpoint that has a manifest."""
    origin: Path | None
    """The checkpoint that it resumed from, on the disk."""
    origin_step: int
    stored_origin: StoreSource | None
    changes: Mapping[str, Any] | None
    """The settings of its spec that the wanted one has otherwise; None if its spec is not known."""
    verdict: Verdict | None
    holder: str = ""
    """The process that uses it."""

    @property
    def is_complete(self) -> bool:
        """Has it trained all steps of the wanted spec, and done all that comes after them?"""
        verdict = self.verdict
        has_ended = verdict is not None and verdict.code == 0 and verdict.seconds > 0  # the time comes after the export
        return has_ended and self.changes == {} and not self.holder

    @property
    def parent(self) -> Path | None:
        """The directory of the run that it resumed."""
        return self.origin.parent.parent if self.origin is not None else None

    def describe(self) -> str:
        """For a list of several: the step, and what its spec has otherwise."""
        step = self.step if self.step is not None else self.origin_step
        keys = ", ".join(f"`{key}` ({format_value(value)})" for key, value in list((self.changes or {}).items())[:4])
        return f"`{self.run_dir}`, step {step}" + (f", of another spec: {keys}" if keys else ", of this spec")


def read_earlier_run(run_dir: Path, wanted: WantedSpec) -> EarlierRun | None:
    """The run of a directory; None where nothing of it can be resumed, and nobody uses it."""
    launch = json_of(run_dir / "launch.json")
    newest = _read_newest_manifest(run_dir)
    origin = Path(launch["resume"]) if isinstance(launch.get("resume"), str) else None
    stored = StoreSource.read(run_dir)
    holder = current_holder(run_dir / RUN_LOCK)
    if newest is None and origin is None and holder is None:
        return None
    resolved = json_of(run_dir / "spec.resolved.json") if newest is None else {}
    spec = newest.get("spec") if newest is not None else resolved.get("spec")
    batch = saved_global_batch(newest) if newest is not None else (resolved.get("batch") or {}).get("global")
    return EarlierRun(
        run_dir=run_dir,
        step=newest.step if newest is not None else None,
        origin=origin,
        origin_step=_step_of(origin, stored),
        stored_origin=stored,
        changes=wanted.changes_from(spec, batch) if isinstance(spec, dict) and spec else None,
        verdict=read_verdict(run_dir),
        holder=str(holder or ""),
    )


def _read_newest_manifest(run_dir: Path) -> Manifest | None:
    try:
        owner = run_dir.stat().st_uid
        checkpoint = find_latest(run_dir / "checkpoints", verify="manifest", owner=owner).checkpoint
        return read_manifest(checkpoint) if checkpoint is not None else None
    except (OSError, UserError):  # removed meanwhile
        return None


def choose_run(runs: Sequence[EarlierRun], allowed: Collection[str]) -> EarlierRun | None:
    """Of runs, the newest first, the one that a spec continues: the newest of the same spec; else the newest that
    differs by allowed keys alone; else the newest, if all others are of the same other spec. A run that another one
    continued from its end is that other one. Raises UserError (CK134) if several are meant.
    """
    same = [run for run in runs if not run.changes]
    others = [run for run in runs if run.changes and not run.holder]
    pool = same or [run for run in others if all(is_allowed(allowed, key) for key in run.changes or ())] or others
    ends = [run for run in pool if not any(_continues(other, run) for other in pool)]
    if not ends:
        return None
    chosen = ends[0]
    if chosen.is_complete or chosen.holder:
        return chosen
    other_specs = [run for run in ends if run.changes != chosen.changes]
    successors = [run for run in runs if run not in pool and _continues(run, chosen) and run.step is not None]
    if other_specs or successors:
        raise UserError([_several_runs_finding([chosen, *other_specs, *successors])])
    return chosen


def newest_saved_step(output_dir: Path, training: str) -> int:
    """The last step of which a run of this training has a checkpoint; 0 without one."""
    run_dirs = (file.parent for file in output_dir.glob("*/launch.json") if not file.parent.is_symlink())
    folders = (run_dir / "checkpoints" for run_dir in run_dirs if read_training_part(run_dir).training == training)
    return max((step_in_name(path.name) or 0 for folder in folders for path in list_checkpoints(folder)), default=0)


def abandoned_origin(chosen: EarlierRun, runs: Sequence[EarlierRun]) -> EarlierRun | None:
    """The run that `chosen`, which has no checkpoint, resumed from, where that went on to later steps."""
    parent = next((run for run in runs if run.run_dir.resolve() == chosen.parent), None)
    return parent if parent is not None and (parent.step or 0) > chosen.origin_step else None


def origin_gone_error(chosen: EarlierRun, parent: EarlierRun) -> UserError:
    """Its checkpoint was removed, so that the later ones of `parent`, which it left, are all that there is."""
    message = f"`{chosen.run_dir}` saved nothing, and the checkpoint that it resumed from is gone"
    note = f"it resumed `{parent.run_dir}` from step {chosen.origin_step}, which has step {parent.step} now"
    return user_error("CK134", message, notes=(note,), fix=f"name the run to resume: --resume {parent.run_dir}")


def _continues(run: EarlierRun, earlier: EarlierRun) -> bool:
    """Did it resume from the last checkpoint of the earlier run? One from a store is in the run's own folder."""
    return run is not earlier and run.parent == earlier.run_dir.resolve() and run.origin_step == earlier.step


def _step_of(origin: Path | None, stored: StoreSource | None) -> int:
    if stored is not None:
        return stored.step
    digits = origin.name.rpartition("-")[2] if origin is not None else ""
    return int(digits) if digits.isdecimal() else 0


def _several_runs_finding(runs: Sequence[EarlierRun]) -> Finding:
    message = f"`--resume auto` does not tell which of {len(runs)} runs is meant: their specs differ"
    notes = tuple(run.describe() for run in runs[:6])
    return Finding("CK134", "error", message, notes=notes, fix=Fix(f"name one: --resume {runs[0].run_dir}"))
