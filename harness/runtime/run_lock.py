# SPDX-License-Identifier: Apache-2.0
"""Locks against a second writer: on the run directory, and on the folder that DeepSpeed swaps to.

Under `harness launch` the supervisor holds the run directory; started by hand, rank 0 does.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from harness import nvme_dirs
from harness.errors import UserError, user_error
from harness.locks import RUN_LOCK, Lock, LockHeld, LockHolder, current_holder, read_holder
from harness.planted_files import PlantedFile
from harness.runtime.distributed import Distributed
from harness.runtime.run_config import RunConfig, RunDir
from harness.verdicts import VERDICT

SWAP_LOCK_FILE = nvme_dirs.LOCK
_SUPERVISOR_VARIABLES = ("HARNESS_SUPERVISOR", "HARNESS_LEADER")
"""Of this host, and of the first one where each host starts its own ranks."""


def check_unlocked(run_dir: RunDir) -> None:
    """Before a rank writes: raises UserError (EN120) when somebody other than its supervisor has the run directory."""
    holder = current_holder(run_dir.root / RUN_LOCK)
    if holder is not None and not _is_our_supervisor(holder):
        raise _in_use_error(run_dir, holder)


def acquire_locks(run_dir: RunDir, distributed: Distributed, run_config: RunConfig) -> list[Lock]:
    """Take the locks of this rank, until `release_locks` or its death. Raises UserError on all ranks when another
    process has one of them (EN120, EN121), or another user may have made the swap folder (EN123).
    """
    return distributed.call_or_fail_everywhere(
        lambda: [*_lock_run_dir(run_dir, distributed), *_lock_swap_folders(distributed, run_config)]
    )


def _is_our_supervisor(holder: LockHolder) -> bool:
    return holder.supervisor_id in {os.environ.get(name) for name in _SUPERVISOR_VARIABLES}


def release_locks(locks: list[Lock]) -> None:
    """Release them, and clear the swap folders that the harness made."""
    for lock in locks:
        nvme_dirs.clear_swap_dir(lock.path.parent)  # a folder that the harness made for this run; others are left alone
        lock.release()
        if nvme_dirs.is_swap_dir(lock.path.parent):
            with contextlib.suppress(OSError):
                lock.path.parent.rmdir()


def _lock_run_dir(run_dir: RunDir, distributed: Distributed) -> list[Lock]:
    path = run_dir.root / RUN_LOCK
    holder = read_holder(path)
    if not distributed.is_main_process or (holder is not None and _is_our_supervisor(holder)):
        return []
    try:
        lock = Lock.acquire(path, f"rank 0 of {run_dir.root.name}")
    except LockHeld as held:
        raise _in_use_error(run_dir, held.holder) from None
    except OSError:
        return []  # the first write to the run directory reports it
    with contextlib.suppress(OSError):
        (run_dir.root / VERDICT).unlink(missing_ok=True)  # of an earlier launch
    return [lock]


def _lock_swap_folders(distributed: Distributed, run_config: RunConfig) -> list[Lock]:
    """DeepSpeed empties its folders below `nvme_path` when it starts, whoever they belong to."""
    zero: dict[str, Any] = run_config.ds_config.get("zero_optimization") or {}
    offloads = [zero.get("offload_optimizer") or {}, zero.get("offload_param") or {}]
    folders = {str(o["nvme_path"]) for o in offloads if o.get("device") == "nvme" and o.get("nvme_path")}
    locks = []
    for folder in sorted(folders) if distributed.is_local_main_process else ():
        try:
            planted = nvme_dirs.make_swap_dir(Path(folder))
            if planted is not None:
                raise _planted_folder_error(planted)
            nvme_dirs.remove_stale_swap_dirs(Path(folder).parent)  # what killed runs left on this node
            locks.append(Lock.acquire(Path(folder) / SWAP_LOCK_FILE, f"run {run_config.run.name}", private=True))
        except LockHeld as held:
            raise user_error(
                "EN121",
                f"`{folder}` is in use by {held.holder or 'another process'}",
                key="zero.offload_optimizer.nvme_path",
                notes=("DeepSpeed empties its folders there at the start, including the swap files of the other run",),
                fix="give each run its own folder, or wait until the other has ended",
            ) from None
        except OSError:
            continue
    return locks


def _planted_folder_error(planted: PlantedFile) -> UserError:
    effect = "that user could have read and changed the swapped weights and states, or let them overwrite your files"
    fix = f"chmod go-w {planted.path}" if planted.is_own else "set `nvme_path` to a folder that you own on that disk"
    return UserError([planted.to_finding("EN123", effect, fix, key="zero.offload_optimizer.nvme_path")])


def _in_use_error(run_dir: RunDir, holder: LockHolder | None) -> UserError:
    return user_error(
        "EN120",
        f"`{run_dir.root}` is in use by {holder or 'another process'}",
        notes=("two writers would mix their metrics and overwrite each other's checkpoints",),
        fix="wait until it has ended, or start another run with `harness launch`",
    )
