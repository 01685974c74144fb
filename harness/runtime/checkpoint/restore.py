# SPDX-License-Identifier: Apache-2.0
"""Restore a checkpoint: verify it, compare it with the run, load it safely; all ranks agree before and after."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from harness.checkpoints.effective_settings import RunNumbers, saved_order_rows
from harness.checkpoints.manifest import UNIVERSAL, Manifest, read_manifest
from harness.checkpoints.resume_compatibility import compare_with_run
from harness.checkpoints.verify import verify_checkpoint
from harness.errors import UserError, user_error
from harness.findings import Finding
from harness.patches.cpu_adam_resume import replay_cpu_adam
from harness.runtime.checkpoint import metadata, reshard, rng_state
from harness.runtime.checkpoint.loaded_state import refusing_other_content
from harness.runtime.checkpoint.own_settings import OwnSettings
from harness.runtime.checkpoint.safe_load import find_unsafe_globals, load_file, unsafe_file_error
from harness.runtime.dataset.sampler import OrderGeometry
from harness.runtime.distributed import Distributed, divide_over_ranks
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings

PICKLED_SUFFIXES = (".pt", ".pth", ".bin", ".pkl")


def restore_checkpoint(ctx: TrainContext, folder: Path, allowed: Collection[str] = ()) -> TrainState:
    """Put engine, optimizer, schedule and random states back as they were when `folder` was saved. A collective.

    `allowed` are keys or sections of the spec that may have changed since the save. Raises UserError on all ranks:
    CK101 damaged, CK102 another layout, CK103 other data, CK104 nothing loaded, CK107 settings that must not change,
    CK108 edited manifest, CK111 a shard with code in it, CK112 a path that leads elsewhere.
    CK120 content that DeepSpeed does not write is raised on each rank that meets it.
    """
    from harness.runtime.checkpoint import deepspeed_io  # a run that saves and resumes nothing does without it

    distributed = ctx.distributed
    manifest = distributed.call_or_fail_everywhere(lambda: read_checked_manifest(folder))
    _verify_files(ctx, manifest)
    layout = reshard.describe_layout(ctx.engine, ctx.topology, ctx.config, distributed)
    changes = reshard.layout_changes(manifest["shape"], layout)
    findings = distributed.call_or_fail_everywhere(lambda: _check_compatibility(ctx, manifest, allowed))
    if distributed.is_main_process and findings:
        print_findings(findings)
    own_settings = OwnSettings(ctx.engine)
    with refusing_other_content(ctx.engine, folder):
        if changes or manifest.get("layout") == UNIVERSAL:
            reshard.load_universal(ctx, manifest.folder, manifest)
        elif distributed.any_rank(not deepspeed_io.load_engine(ctx.engine, folder, manifest.tag)):
            raise user_error("CK104", f"DeepSpeed loaded nothing from `{folder}`", fix="name another checkpoint")
    with refusing_other_content(ctx.engine, folder):
        own_settings.restore(ctx.engine)
        if ctx.patches.is_applied("cpu-adam-resume") and manifest.step < ctx.total_steps:
            # `FP16_UnfusedOptimizer`, in 16 bit at stage 0, makes its states by a step of its own, which they count.
            replay_cpu_adam(ctx.engine, manifest.step + 1)
    order = saved_order_rows(manifest)
    if order is not None:
        ctx.train_data.keep_order(OrderGeometry(*order, (manifest.get("geometry") or {}).get("order_seed")))
    rng_file = folder / f"rank-{distributed.rank:05d}.pt"
    # With another world size or seed, or an import without them, ranks keep their fresh random states.
    if (
        rng_file.name in manifest.files
        and manifest.world_size == distributed.world_size
        and _has_same_seed(ctx, manifest)
    ):
        states = distributed.call_or_fail_everywhere(lambda: load_file(rng_file))
        distributed.call_or_fail_everywhere(lambda: _restore_rng_state(rng_file, states))
    state = distributed.call_or_fail_everywhere(lambda: _parse_state(manifest))
    distributed.barrier()
    return state


def _has_same_seed(ctx: TrainContext, manifest: Manifest) -> bool:
    saved = ((manifest.get("spec") or {}).get("train") or {}).get("seed", ctx.train_data.seed)
    return bool(saved == ctx.train_data.seed)


def _restore_rng_state(file: Path, states: Any) -> None:
    """Raises UserError (CK101) where the file does not hold what a save wrote."""
    try:
        rng_state.set_rng_state(states)
    except Exception as error:  # content of any type provokes almost anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise user_error("CK101", f"`{file}` holds no random states: {reason}", fix="name another checkpoint") from None


def read_checked_manifest(folder: Path) -> Manifest:
    """The manifest, after a check of every file's name and size. Raises UserError with all findings."""
    errors = [f for f in verify_checkpoint(folder, deep=False) if f.is_error]
    if errors:
        raise UserError(errors)
    return read_manifest(folder)


def _verify_files(ctx: TrainContext, manifest: Manifest) -> None:
    """Check every byte and every pickle, each rank its share; `checkpoint.verify: sizes` leaves the bytes out."""
    distributed, deep = ctx.distributed, ctx.run_config.run.spec.checkpoint.verify == "full"
    names = files_of_rank(manifest, distributed)

    def verify() -> None:
        findings = verify_checkpoint(manifest.folder, deep=True, only=names) if deep else []
        if findings:
            raise UserError(findings)
        for name in names:
            unsafe = find_unsafe_globals(manifest.folder / name) if name.endswith(PICKLED_SUFFIXES) else []
            if unsafe:
                raise unsafe_file_error(manifest.folder / name, unsafe)

    distributed.call_or_fail_everywhere(verify)


def files_of_rank(manifest: Manifest, distributed: Distributed) -> list[str]:
    """The files that this rank verifies."""
    records = sorted(manifest.files.items(), key=lambda item: (-item[1].bytes, item[0]))
    loads = ((name, record.bytes + 1) for name, record in records)
    return divide_over_ranks(loads, distributed.world_size)[distributed.rank]


def _check_compatibility(ctx: TrainContext, manifest: Manifest, allowed: Collection[str]) -> list[Finding]:
    """Findings about changed settings. Raises UserError when this run must not resume from the checkpoint. A changed
    layout is no finding: the checkpoint is resharded.
    """
    data = ctx.train_data
    comparison = compare_with_run(
        manifest,
        metadata.spec_of(ctx.run_config),
        world_size=ctx.distributed.world_size,
        sha256=metadata.content_hashes(ctx),
        dtype=metadata.dtype_of(ctx.engine),
        allowed=allowed,
        numbers=RunNumbers(data.geometry.global_batch_size, ctx.total_steps, data.rows_per_epoch),
    )
    findings = comparison.to_findings(str(manifest.folder), can_reshard=True)
    errors = [f for f in findings if f.is_error]
    if errors:
        raise UserError(errors)
    return findings


def _parse_state(manifest: Manifest) -> TrainState:
    try:
        return TrainState.from_json(manifest["state"])
    except (KeyError, TypeError, ValueError) as error:
        raise user_error(
            "CK101", f"`{manifest.folder}` has a training state that this version cannot read: {error}"
        ) from None
