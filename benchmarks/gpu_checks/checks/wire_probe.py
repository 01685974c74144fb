# SPDX-License-Identifier: Apache-2.0
"""The wire between two ranks on one GPU: does NCCL carry their tensors? Before a part, not a check of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable

from benchmarks.gpu_checks.check import Ending, Figures, Scene, Task

SECONDS = 45.0


def choose_wire(start_ranks: Callable[[Task], Ending]) -> str:
    """`nccl` where two ranks on the first GPU can use it, else `gloo`. NCCL refuses that before 2.30, later it wants
    NCCL_MULTI_RANK_GPU_ENABLE=1.
    """
    folder = tempfile.mkdtemp(prefix="gpu-check-wire-")
    try:
        ending = start_ranks(Task("wire", folder, False, 2, seconds=SECONDS, wire="nccl"))
        is_right = not any(ending.codes) and not judge(ending.figures, False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return "nccl" if is_right else "gloo"


def measure(scene: Scene) -> Figures:
    """The sum of the ranks' numbers, each 1 more than its rank."""
    import torch

    number = torch.full((1,), scene.rank + 1.0, device=scene.distributed.device)
    torch.distributed.all_reduce(number)
    return {"sum": float(number)}


def judge(figures: Figures, _rehearse: bool) -> list[str]:
    """1 + 2."""
    return [] if figures.get("sum") == 3.0 else [f"two ranks sum up to {figures.get('sum')}"]
