# SPDX-License-Identifier: Apache-2.0
"""Resolves `--resume`: the checkpoint that a launch resumes from, or the reason why it cannot resume.

Reads checkpoints' manifests and bytes, never their tensors; writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.checkpoints.effective_settings import RunNumbers, saved_global_batch
from harness.checkpoints.latest import (
    checkpoints_folder,
    describe_problem,
    find_latest,
    list_checkpoints,
    step_in_name,
    verify_with_name,
)
from harness.checkpoints.lineage import find_lineage
from harness.checkpoints.manifest import Manifest, read_manifest
from harness.checkpoints.resume_compatibility import compare_with_run
from harness.checkpoints.store_source import StoreSource, find_stored_checkpoint
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.hostinfo.path_probe import answer_in_time, find_similar_path
from harness.launching.setup.earlier_runs import (
    EarlierRun,
    WantedSpec,
    abandoned_origin,
    choose_run,
    newest_saved_step,
    origin_gone_error,
    read_earlier_run,
)
from harness.launching.setup.run_dir import list_runs
from harness.object_stores.store_url import is_store_url
from harness.planted_files import TRUSTED_ACCOUNTS, find_foreign_owner, find_foreign_owner_below
from harness.run.batch_sizes import BatchSizes
from harness.run.resolved_run import ResolvedRun
from harness.run_records.run_list import fix_for_no_checkpoint, known_runs_notes, resolve_run_path
from harness.training_lineage import TrainingPart, read_training_part
from harness.units import format_bytes
from harness.verdicts import Verdict

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """The checkpoint to resume from (None: start from the beginning), and the run directory or folder that has it."""

    checkpoint: Path | None = None
    origin: Path | None = None
    stored: StoreSource | None = None
    """The checkpoint in an object store, which the ranks put at `checkpoint` of their run directory."""
    runs: tuple[str, ...] = ()
    """The ids of the runs that a resume continues."""
    batch: BatchSizes | None = None
    """The checkpoint's global batch, which this run keeps by other accumulation steps. None: as the spec has it."""
    complete: Verdict | None = None
    """Of `origin`, if it is complete by this spec: there is nothing to resume."""
    has_other_settings: bool = False
    """Does this run train otherwise than the checkpoint was trained?"""

    def place_in_training(self, run_dir: Path) -> TrainingPart:
        """That of the run that resumes. It is a branch if it has other settings and the training has a later step."""
        if self.checkpoint is None:
            return TrainingPart(run_dir.name)
        folder = self.checkpoint.parent.parent
        parent, step = folder.name, step_in_name(self.checkpoint.name) or 0
        if self.stored is not None:
            folder, parent = run_dir.parent / self.stored.run_id, self.stored.run_id
            training = min((*self.stored.runs, parent))
            training = read_training_part(folder).training if folder.is_dir() else training
        elif not (folder / "launch.json").is_file():
            return TrainingPart(run_dir.name)
        else:
            training = read_training_part(folder).training
        if self.has_other_settings and step < newest_saved_step(folder.parent, training):
            return TrainingPart(run_dir.name, parent, training)
        return TrainingPart(training, parent)


def resolve_resume(
    requested: str,
    output_dir: Path,
    name: str,
    spec: Mapping[str, Any],
    allowed: tuple[str, ...],
    log: Log,
    run_dir: Path | None = None,
    run: ResolvedRun | None = None,
    *,
    keeps_batch: bool = True,
) -> ResumeSource:
    """`never`: nothing. `auto`: the newest complete checkpoint of this user's newest run of this spec. Else a
    run directory, the name of one in `output_dir`, such as `latest`, or a checkpoint; or the URL of a prefix of an
    object store, or of a checkpoint below it, which the ranks of `run_dir` will download. `run` has the batch of this
    run; with `keeps_batch` it may become the checkpoint's.

    Every byte of that checkpoint is verified, and `log` gets a line for each one that is skipped. Raises UserError when
    a named one is not complete (CK001, CK101 ...), when another user made what `latest` or
    the beginning of a name leads to (CK129), when a change of the spec breaks continuity (CK107 ...), when no step is
    left (CK135), when several runs may be meant (CK134) or when the run to resume still runs (EN122). `global_batch` is
    that of this run.
    """
    if requested == "never":
        return ResumeSource()

    wanted = WantedSpec(spec, allowed, run, keeps_batch)

    def check(manifest: Manifest, checkpoint: str) -> tuple[BatchSizes | None, bool]:
        saved_batch, saved_spec = saved_global_batch(manifest), manifest.get("spec")
        kept = wanted.kept_batch(saved_batch)
        batch = kept or (run.batch if run is not None else None)
        _check_continuity(manifest, checkpoint, spec, allowed, log, batch.global_batch if batch else None)
        if kept is not None and run is not None:
            log(_kept_batch_note(kept, run))
        return kept, bool(wanted.changes_from(saved_spec if isinstance(saved_spec, dict) else {}, saved_batch))

    if is_store_url(requested):
        return _resume_stored(requested, check, log, run_dir or output_dir)
    if requested == "auto":
        runs = _list_earlier_runs(output_dir, name, wanted, log)
        source = _resume_auto(runs, wanted, log)
        if source.stored is not None:
            url = f"{source.stored.url}/{source.stored.folder_name}"
            return _resume_stored(url, check, log, run_dir or output_dir)
    else:
        source = _resume_named(requested, output_dir, wanted, log)
    if source.checkpoint is None:
        return source
    manifest = read_manifest(source.checkpoint)
    batch, has_other_settings = check(manifest, str(source.checkpoint))
    prefix = (spec.get("checkpoint") or {}).get("upload_to")
    runs_at_prefix = find_lineage(source.checkpoint).runs_at(prefix)
    return replace(source, runs=runs_at_prefix, batch=batch, has_other_settings=has_other_settings)


def _resume_stored(
    requested: str, check: Callable[[Manifest, str], tuple[BatchSizes | None, bool]], log: Log, run_dir: Path
) -> ResumeSource:
    stored, manifest, skipped = find_stored_checkpoint(requested)
    for line in skipped:
        log(line)
    url = f"{stored.url}/{stored.folder_name}"
    batch, has_other_settings = check(manifest, url)
    log(f"{url}: {format_bytes(manifest.bytes)}, which the ranks download")
    checkpoint = run_dir.resolve() / "checkpoints" / stored.folder_name
    return ResumeSource(checkpoint, run_dir, stored, stored.runs, batch, has_other_settings=has_other_settings)


def find_resumable_checkpoint(run_dir: Path, log: Log) -> Path | None:
    """The newest complete checkpoint of a run directory, verified byte by byte; logs those that it skips."""
    return _find_latest_and_log_skipped(run_dir / "checkpoints", log)


def _find_latest_and_log_skipped(folder: Path, log: Log) -> Path | None:
    owner = folder.parent.stat().st_uid if folder.is_dir() else None
    planted = find_foreign_owner(folder, trusted=owner)
    if planted is not None:
        log(f"skipped {folder}: {planted.reason}")
        return None
    latest = find_latest(folder, verify="bytes", owner=owner)
    for path, reason in latest.skipped:
        log(f"skipped {path}: {reason}")
    return latest.checkpoint


def find_complete_run(
    requested: str,
    output_dir: Path,
    name: str,
    spec: Mapping[str, Any],
    allowed: tuple[str, ...],
    run: ResolvedRun | None,
) -> ResumeSource:
    """The answer of `resolve_resume` about a complete run, without `keeps_batch`; empty where there is something to
    resume. Reads no bytes.
    """
    wanted = WantedSpec(spec, allowed, run, keeps_batch=False)
    if is_store_url(requested):
        return ResumeSource()
    if requested == "auto":
        earlier = choose_run(_list_earlier_runs(output_dir, name, wanted, lambda _: None), allowed)
    else:
        earlier = _named_run(find_resume_folder(requested, output_dir), wanted)
    return _complete_source(earlier) if earlier is not None and earlier.is_complete else ResumeSource()


def _named_run(folder: Path, wanted: WantedSpec) -> EarlierRun | None:
    """The run of a folder; None for a checkpoint, or a folder of checkpoints that is of no run."""
    inside = checkpoints_folder(folder)
    is_checkpoint = inside == folder.parent
    return None if is_checkpoint or inside.name != "checkpoints" else read_earlier_run(inside.parent, wanted)


def _complete_source(run: EarlierRun) -> ResumeSource:
    return ResumeSource(origin=run.run_dir, complete=run.verdict)


def _list_earlier_runs(output_dir: Path, name: str, wanted: WantedSpec, log: Log) -> list[EarlierRun]:
    """The runs of this user and name that have a checkpoint, came from one or are in use, the newest first."""
    runs = []
    for run_dir in list_runs(output_dir, name):
        planted = find_foreign_owner(run_dir)
        if planted is not None:
            trust = f"name it (`--resume {run_dir}`), or export {TRUSTED_ACCOUNTS}='{planted.account}'"
            log(f"skipped {run_dir}: it {planted.reason}, and to load it can run code; to resume from it, {trust}")
            continue
        runs.append(read_earlier_run(run_dir, wanted))
    return [run for run in runs if run is not None]


def _resume_auto(runs: list[EarlierRun], wanted: WantedSpec, log: Log) -> ResumeSource:
    """The newest complete checkpoint of the run that `auto` means; else of the one that it means without that run."""
    while (chosen := choose_run(runs, wanted.allowed)) is not None:
        if chosen.holder:
            raise UserError([_still_running_finding(chosen.run_dir, chosen.holder)], ExitCode.PREFLIGHT)
        if chosen.is_complete:
            return _complete_source(chosen)
        for newer in runs[: runs.index(chosen)]:
            if newer.changes != chosen.changes:
                log(f"passed over {newer.describe()}; to resume from it: --resume {newer.run_dir}")
        checkpoint = find_resumable_checkpoint(chosen.run_dir, log)
        if checkpoint is not None:
            return ResumeSource(checkpoint.resolve(), chosen.run_dir)
        if chosen.stored_origin is not None:
            return ResumeSource(origin=chosen.run_dir, stored=chosen.stored_origin)
        if chosen.origin is not None and _is_usable(chosen.origin):
            return ResumeSource(chosen.origin, chosen.run_dir)
        parent = abandoned_origin(chosen, runs)
        if parent is not None:
            raise origin_gone_error(chosen, parent)
        runs.remove(chosen)
    return ResumeSource()


def find_resume_folder(requested: str, output_dir: Path) -> Path:
    """The run directory or checkpoint that `--resume` names; what is in it is not read. Raises UserError (CK001)."""
    try:
        folder = answer_in_time(Path(requested), lambda: resolve_run_path(requested, output_dir))
    except TimeoutError as error:
        raise UserError([_no_checkpoint_finding(requested, str(error))]) from None
    if not folder.is_dir():
        similar = find_similar_path("", requested, lambda path: Path(path).is_dir())
        notes = () if folder.exists() or similar else known_runs_notes(output_dir)
        problem = "is not a folder or the name of a run"
        raise UserError([_no_checkpoint_finding(requested, problem, notes, similar)])
    return folder


def _is_usable(checkpoint: Path) -> bool:
    return find_foreign_owner_below(checkpoint) is None and describe_problem(checkpoint, "bytes") is None


def _resume_named(requested: str, output_dir: Path, wanted: WantedSpec, log: Log) -> ResumeSource:
    folder = find_resume_folder(requested, output_dir)
    _verify_owner(requested, folder)
    inside = checkpoints_folder(folder)
    if inside != folder.parent:
        run = _named_run(folder, wanted)
        if run is not None and run.is_complete:
            return _complete_source(run)
        checkpoint = _find_latest_and_log_skipped(inside, log)
        if checkpoint is None:
            raise UserError([_no_checkpoint_finding(requested, "has no complete checkpoint", folder=folder)])
        return ResumeSource(checkpoint.resolve(), folder)
    errors = [f for f in verify_with_name(folder) if f.is_error]
    if errors:
        others = [p for p in list_checkpoints(inside) if p != folder and describe_problem(p, "bytes") is None]
        hint = Finding(
            "CK001",
            "error",
            f"`{requested}` is not a complete checkpoint",
            fix=Fix(f"resume from the newest complete one next to it: --resume {others[0]}")
            if others
            else Fix(
                "no complete one is next to it; name another run directory, or start from step 0 without `--resume`"
            ),
        )
        raise UserError([*errors, hint])
    return ResumeSource(folder.resolve(), folder)


def _verify_owner(requested: str, folder: Path) -> None:
    """A link such as `latest`, or the beginning of a name, may lead to any run; who names one directory chose that one.
    Raises UserError (CK129) where another user made it, or a part of a named checkpoint.
    """
    is_named = folder.name == Path(requested).name and not folder.is_symlink()
    made = folder.resolve()
    is_checkpoint = checkpoints_folder(folder) == folder.parent
    planted = find_foreign_owner(made) if not is_named else None
    if planted is None and is_checkpoint:
        planted = find_foreign_owner_below(made, trusted=made.stat().st_uid)
    if planted is not None:
        effect = "the run would have resumed from it, and loading a checkpoint can run code"
        raise UserError([planted.to_finding("CK129", effect, f"name one of your runs, or this one: --resume {made}")])


def _kept_batch_note(batch: BatchSizes, run: ResolvedRun) -> str:
    return (
        f"keeping the checkpoint's global batch of {batch.global_batch}: {batch.micro_batch} per rank x "
        f"{run.parallel_dims.data} data-parallel ranks x {batch.accumulation} accumulation steps"
    )


def _check_continuity(
    manifest: Manifest, name: str, spec: Mapping[str, Any], allowed: tuple[str, ...], log: Log, global_batch: int | None
) -> None:
    """Compare the manifest with the run. The rank compares again, with hashes, and reshards another layout."""
    last = (spec.get("train") or {}).get("max_steps")
    if isinstance(last, int) and manifest.step > last:
        raise UserError([_no_step_left_finding(name, manifest.step, last)])
    numbers = RunNumbers(global_batch)
    findings = compare_with_run(manifest, spec, allowed=allowed, numbers=numbers).to_findings(name, can_reshard=True)
    errors = [f for f in findings if f.is_error]
    if errors:
        raise UserError(errors)
    for finding in findings:
        log(finding.message)


def _no_checkpoint_finding(
    requested: str, problem: str, notes: tuple[str, ...] = (), similar: str | None = None, folder: Path | None = None
) -> Finding:
    fix = fix_for_no_checkpoint(folder or Path(requested)) if similar is None else Fix(f"did you mean `{similar}`?")
    return Finding("CK001", "error", f"`{requested}` {problem}", notes=notes, fix=fix)


def _no_step_left_finding(name: str, step: int, last: int) -> Finding:
    fix = Fix(f"set `train.max_steps` above {step}, or name an earlier checkpoint")
    message = f"`{name}` is at step {step}, and `train.max_steps` is {last}: no step is left to train"
    return Finding("CK135", "error", message, "train.max_steps", fix=fix)


def _still_running_finding(run_dir: Path, holder: str) -> Finding:
    return Finding(
        "EN122",
        "error",
        f"the newest run of this spec, `{run_dir}`, still runs: {holder}",
        notes=("both runs would train the same steps, and the older one removes checkpoints that the other reads",),
        fix=Fix("wait for it or stop it; `--resume never` starts another run from step 0"),
    )
