"""Going on from a checkpoint: verified, compared, loaded safely, and agreed on by all ranks before and after."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from harness.checkpoints import manifest
from harness.checkpoints.manifest import Manifest
from harness.checkpoints.resume_compatibility import compare_with_run
from harness.checkpoints.verify import verify_checkpoint
from harness.errors import UserError
from harness.findings import Finding
from harness.runtime.checkpoint import deepspeed_io, metadata, parallel_layout, rng_state
from harness.runtime.context import RunContext
from harness.runtime.distributed import Distributed
from harness.runtime.lr_schedule import restore_scheduled_lr
from harness.runtime.patches.cpu_adam_resume import replay_cpu_adam
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings, user_error

PICKLED_SUFFIXES = (".pt", ".pth", ".bin", ".pkl")


def restore_checkpoint(job: RunContext, folder: Path, allowed: Collection[str] = ()) -> TrainState:
    """Put engine, optimizer, schedule and random states back as they were when `folder` was saved. A collective.

    `allowed` are keys or sections of the spec whose change since then is meant. Raises Refused on all ranks: CK101
    damaged, CK102 another shape, CK103 other data, CK104 nothing loaded, CK107 settings that must not change, CK108
    edited manifest, CK111 a shard with code in it, CK112 a path that leads elsewhere.
    """
    ranks = job.distributed
    saved = ranks.call_or_fail_everywhere(lambda: read_checked_manifest(folder))
    _verify_files(job, saved)
    why = parallel_layout.reshard_reasons(job, saved)
    told = ranks.call_or_fail_everywhere(lambda: _check_compatibility(job, saved, allowed))
    if ranks.is_main_process and told:
        print_findings(told)
    if why:
        parallel_layout.load_resharded(job, saved)
    elif ranks.any_rank(not deepspeed_io.load_engine(job.engine, folder, saved.tag)):
        raise user_error("CK104", f"DeepSpeed loaded nothing from `{folder}`", fix="name another checkpoint")
    replay_cpu_adam(job.engine)
    restore_scheduled_lr(job.engine)
    mine = folder / f"rank-{ranks.rank:05d}.pt"
    if saved.world_size == ranks.world_size:  # others have no random states of their own, and go on with fresh ones
        states = ranks.call_or_fail_everywhere(lambda: deepspeed_io.load_file(mine))
        rng_state.set_rng_state(states)
    state = ranks.call_or_fail_everywhere(lambda: _parse_state(saved))
    ranks.barrier()
    return state


def read_checked_manifest(folder: Path) -> Manifest:
    """The manifest, after a look at the name and the size of every file. Raises Refused with all that is wrong."""
    found = [f for f in verify_checkpoint(folder, deep=False) if f.is_error]
    if found:
        raise UserError(found)
    return manifest.read_manifest(folder)


def _verify_files(job: RunContext, saved: Manifest) -> None:
    """Every byte and every pickle, each rank its part; `checkpoint.verify: sizes` leaves the bytes out."""
    ranks, deep = job.distributed, job.run_config.run.spec.checkpoint.verify == "full"
    mine = files_of_rank(saved, ranks)

    def look() -> None:
        found = verify_checkpoint(saved.folder, deep=True, only=mine) if deep else []
        if found:
            raise UserError(found)
        for name in mine:
            foreign = deepspeed_io.find_unsafe_globals(saved.folder / name) if name.endswith(PICKLED_SUFFIXES) else []
            if foreign:
                raise deepspeed_io.unsafe_file_error(saved.folder / name, foreign)

    ranks.call_or_fail_everywhere(look)


def files_of_rank(saved: Manifest, ranks: Distributed) -> list[str]:
    """The files that this rank looks at: large ones are spread first, so that all have about the same to read."""
    loads, parts = [0] * ranks.world_size, [[] for _ in range(ranks.world_size)]  # type: tuple[list[int], list[list[str]]]
    for name, record in sorted(saved.files.items(), key=lambda item: (-item[1].bytes, item[0])):
        rank = loads.index(min(loads))
        loads[rank] += record.bytes + 1
        parts[rank].append(name)
    return parts[ranks.rank]


def _check_compatibility(job: RunContext, saved: Manifest, allowed: Collection[str]) -> list[Finding]:
    """What is to be told of changed settings. Raises Refused when this run must not go on from the checkpoint; whether
    it can, in its shape, is not asked here.
    """
    comparison = compare_with_run(
        saved,
        metadata.spec_of(job.run_config),
        world_size=job.distributed.world_size,
        sha256=metadata.content_hashes(job),
        dtype=metadata.dtype_of(job.engine),
        allowed=allowed,
    )
    found = comparison.to_findings(str(saved.folder), can_reshard=True)
    errors = [f for f in found if f.is_error]
    if errors:
        raise UserError(errors)
    return found


def _parse_state(saved: Manifest) -> TrainState:
    try:
        return TrainState.from_json(saved["state"])
    except (KeyError, TypeError, ValueError) as error:
        raise user_error(
            "CK101", f"`{saved.folder}` holds a state of training that this version cannot read: {error}"
        ) from None
