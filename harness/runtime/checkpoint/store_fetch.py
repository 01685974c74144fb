# SPDX-License-Identifier: Apache-2.0
"""The download of the checkpoint that a run resumes from, once for each disk, before it is restored."""

from __future__ import annotations

from pathlib import Path

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import describe_problem
from harness.checkpoints.manifest import Manifest
from harness.checkpoints.store_source import StoreSource, store_finding
from harness.checkpoints.store_transfer import download_checkpoint
from harness.checkpoints.stored_run import StoredRun
from harness.errors import UserError
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url
from harness.runtime.train_context import TrainContext


def fetch_from_store(ctx: TrainContext, resume: Path) -> None:
    """Put the checkpoint of `resume.json` at `resume`, where it is not there yet. A collective.

    Rank 0 is the first: on a shared disk the others find it. Where hosts have disks of their own, the first rank of
    each downloads it. Raises UserError on all ranks (ST1xx).
    """
    source, distributed = StoreSource.read(ctx.run_dir.root), ctx.distributed
    if source is None or source.folder_name != resume.name or resume.parent != ctx.run_dir.checkpoints:
        return
    for is_turn in (distributed.is_main_process, distributed.is_local_main_process and not distributed.is_main_process):
        error = None
        if is_turn and describe_problem(resume, "sizes") is not None:
            try:
                _download(ctx, source, resume)
            except UserError as refusal:
                error = refusal
        distributed.long_barrier()
        distributed.raise_everywhere(error)


def _download(ctx: TrainContext, source: StoreSource, resume: Path) -> None:
    url = parse_store_url(source.url)
    try:
        manifest = download_checkpoint(
            StoredRun(ObjectStore(url)),
            source.step,
            resume,
            checksum=source.checksum,
            on_bytes=lambda _: ctx.status.heartbeat(),
        )
    except StoreError as error:
        effect = "the run would have had no checkpoint to resume from"
        raise UserError([store_finding(error, url.child(source.folder_name), "", effect)]) from None
    _restore_evaluations(manifest, resume.parent)


def _restore_evaluations(manifest: Manifest, folder: Path) -> None:
    """The evaluations that the manifest repeats: its own, the best and the last, for `keep_best`."""
    evaluations = Evaluations.read(folder)
    for name in ("own", "best", "last"):
        values = dict((manifest.get("evaluation") or {}).get(name) or {})
        step = values.pop("step", None)
        if type(step) is int and isinstance(values.get("loss"), float) and step not in evaluations.by_step:
            evaluations = evaluations.with_evaluation(step, values)
    if evaluations.by_step:
        try:
            evaluations.write(folder)
        except OSError:
            return
