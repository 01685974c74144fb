"""Keeps a second writer away: from the run directory, and from the folder that DeepSpeed swaps to.

Under `harness launch` the supervisor holds the run directory; started by hand, rank 0 does.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from harness import swap_folders
from harness.errors import Refused
from harness.locks import Held, Holder, Lock, held_by, holder_of
from harness.runtime.ranks import Ranks
from harness.runtime.refusals import refusal
from harness.runtime.rundir import Orders, RunDir
from harness.verdicts import VERDICT

LOCK = "lock"
SWAP_LOCK = swap_folders.LOCK
_SUPERVISORS = ("HARNESS_SUPERVISOR", "HARNESS_LEADER")
"""Of this host, and of the first one where each host starts its own ranks."""


def refuse_if_held(run_dir: RunDir) -> None:
    """Before a rank writes: raises Refused (EN120) when somebody other than its supervisor has the run directory."""
    holder = held_by(run_dir.root / LOCK)
    if holder is not None and not _is_ours(holder):
        raise _in_use(run_dir, holder)


def hold(run_dir: RunDir, ranks: Ranks, orders: Orders) -> list[Lock]:
    """The locks of this rank, held until `release` or its death. Raises Refused (EN120, EN121) on all ranks when
    another process has one of them.
    """
    return ranks.together(lambda: [*_run_directory(run_dir, ranks), *_swap_folders(ranks, orders)])


def _is_ours(holder: Holder) -> bool:
    return holder.supervisor in {os.environ.get(name) for name in _SUPERVISORS}


def release(locks: list[Lock]) -> None:
    """Give them back."""
    for lock in locks:
        swap_folders.empty(lock.path.parent)  # a folder that the harness made for this run; others are left alone
        lock.release()
        if swap_folders.is_own(lock.path.parent):
            with contextlib.suppress(OSError):
                lock.path.parent.rmdir()


def _run_directory(run_dir: RunDir, ranks: Ranks) -> list[Lock]:
    path = run_dir.root / LOCK
    holder = holder_of(path)
    if not ranks.is_first or (holder is not None and _is_ours(holder)):
        return []
    try:
        lock = Lock.take(path, f"rank 0 of {run_dir.root.name}")
    except Held as held:
        raise _in_use(run_dir, held.holder) from None
    except OSError:
        return []  # a run directory that cannot be written is told of where it is written
    with contextlib.suppress(OSError):
        (run_dir.root / VERDICT).unlink(missing_ok=True)  # of the launch that was here before
    return [lock]


def _swap_folders(ranks: Ranks, orders: Orders) -> list[Lock]:
    """DeepSpeed empties its folders below `nvme_path` when it starts, whoever they belong to."""
    zero: dict[str, Any] = orders.ds_config.get("zero_optimization") or {}
    offloads = [zero.get("offload_optimizer") or {}, zero.get("offload_param") or {}]
    folders = {str(o["nvme_path"]) for o in offloads if o.get("device") == "nvme" and o.get("nvme_path")}
    locks = []
    for folder in sorted(folders) if ranks.is_first_here else ():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            swap_folders.sweep(Path(folder).parent)  # what killed runs left on this node
            locks.append(Lock.take(Path(folder) / SWAP_LOCK, f"run {orders.run.name}"))
        except Held as held:
            raise refusal(
                "EN121",
                f"`{folder}` is in use by {held.holder or 'another process'}",
                key="zero.offload_optimizer.nvme_path",
                notes=(
                    "DeepSpeed empties its folders there at the start, and with them what the other run has swapped",
                ),
                fix="give each run a folder of its own, or wait until the other has ended",
            ) from None
        except OSError:
            continue
    return locks


def _in_use(run_dir: RunDir, holder: Holder | None) -> Refused:
    return refusal(
        "EN120",
        f"`{run_dir.root}` is in use by {holder or 'another process'}",
        notes=("two writers would mix their metrics and overwrite each other's checkpoints",),
        fix="wait until it has ended, or start a run of its own with `harness launch`",
    )
