# SPDX-License-Identifier: Apache-2.0
"""The commit of a checkpoint where each host has only its own disk: all hosts publish it, or none does.

The first rank of a host writes the manifest of its folder: the same on all hosts but for `node`, with the files of all
ranks. Every host has written its manifest before one renames its folder.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.manifest import MANIFEST, write_manifest
from harness.file_io import fsync_folder
from harness.runtime.checkpoint.hashing_writer import fsync_tree
from harness.runtime.distributed import Distributed
from harness.runtime.object_gather import Gather
from harness.runtime.user_errors import user_error

_Problem = tuple[int, tuple[int | None, str]]
"""A rank, and `errno` and reason of its error."""


@dataclass(frozen=True, slots=True)
class HostDisk:
    """The disk of this rank's host: the number of the host, and whether this rank is the first there."""

    node: int
    is_leader: bool
    leaders: tuple[int, ...]
    """The first rank of each host."""

    @staticmethod
    def find(distributed: Distributed) -> HostDisk:
        """A collective."""
        local_ranks = distributed.all_gather_object(distributed.local_rank)
        leaders = tuple(rank for rank, local_rank in enumerate(local_ranks) if local_rank == 0)
        node = sum(leader <= distributed.rank for leader in leaders) - 1
        return HostDisk(node, distributed.rank in leaders, leaders)


def check_own_folder(folder: Path, distributed: Distributed, disk: HostDisk) -> None:
    """A collective. Raises UserError on all ranks where a host cannot write there (CK110), or where two hosts share the
    folder (CK133): each would empty it for its own files.
    """
    marker = folder / f".host-{distributed.rank}"

    def write() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            message = f"checkpoints cannot be written to `{folder}` on the host of rank {distributed.rank}: {reason}"
            raise user_error("CK110", message, fix="make it writable on every host") from None

    def find_others() -> None:
        others = [
            rank for rank in disk.leaders if rank != distributed.rank and marker.with_name(f".host-{rank}").exists()
        ]
        if others:
            raise user_error(
                "CK133",
                f"the hosts of ranks {others[0]} and {distributed.rank} share `{folder}`",
                key="launch.shared_disk",
                fix="remove `launch.shared_disk: false`: one folder for all is the default",
            )

    try:
        distributed.call_or_fail_everywhere(write if disk.is_leader else _nothing)
        distributed.call_or_fail_everywhere(find_others if disk.is_leader else _nothing)
    finally:
        if disk.is_leader:
            marker.unlink(missing_ok=True)


def publish_on_hosts(
    temporary: Path, final: Path, body: dict[str, Any], disk: HostDisk, gather: Gather
) -> tuple[_Problem | None, _Problem | None]:
    """Publish `temporary` as `final` on every host. Returns, the same on all ranks, the rank and the error that
    prevented it, and those of a host where it is complete, but its name may not survive a power cut.
    """

    def prepare() -> None:
        fsync_tree(temporary)
        write_manifest(temporary, {**body, "layout": "per-host", "node": disk.node})

    def rename() -> None:
        shutil.rmtree(final, ignore_errors=True)  # from before a resume at an earlier step
        temporary.rename(final)

    def first_problem(work: Callable[[], None]) -> _Problem | None:
        errors = gather(_error_of(work if disk.is_leader else _nothing))
        return next(((rank, error) for rank, error in enumerate(errors) if error is not None), None)

    failure = first_problem(prepare)
    if failure is None:
        failure = first_problem(rename)
        if failure is not None and disk.is_leader:  # without its manifest it is no checkpoint
            with contextlib.suppress(OSError):
                (final / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(final, ignore_errors=True)
    if failure is not None:
        return failure, None
    return None, first_problem(lambda: fsync_folder(final.parent))


def _nothing() -> None:
    """The part of a rank that is not the first of its host."""


def _error_of(work: Callable[[], None]) -> tuple[int | None, str] | None:
    try:
        work()
    except OSError as error:
        return error.errno, error.strerror or str(error)
    return None
