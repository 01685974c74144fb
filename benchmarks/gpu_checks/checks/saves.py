# SPDX-License-Identifier: Apache-2.0
"""Saves of states that are on the device: for how long a step stands still, in line and in the background, and GB/s;
and whether both have the same tensors.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.device import make_deterministic
from benchmarks.gpu_checks.runs import newest_checkpoint, read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_spec

STEPS = 4


def measure(scene: Scene) -> Figures:
    """The last save of each way, and whether its files are whole."""
    make_deterministic()
    found: Figures = {}
    for name, background in (("in_line", False), ("background", True)):
        folder = scene.folder / name
        train_run(scene, folder, _make_spec(scene, background=background), torch_adam=True)
        saves = read_lines(folder, "save")
        last = next(line for line in reversed(saves) if line["background"] is background)
        checkpoint = newest_checkpoint(folder)
        is_whole = checkpoint is not None and _is_whole(checkpoint)
        files = [file for file in checkpoint.rglob("*") if file.is_file()] if checkpoint else []
        found[name] = {
            "saves": len(saves),
            "gb": last["bytes"] / 1e9,
            "seconds": last["seconds"],
            "stall_seconds": last["stall_seconds"],
            "copy_seconds": last["copy_seconds"],
            "gb_per_second": last["bytes"] / 1e9 / last["seconds"],
            "copy_gb_per_second": last["bytes"] / 1e9 / max(last["copy_seconds"], 1e-9),
            "is_whole": is_whole,
            "on_disk_gb": sum(file.stat().st_size for file in files) / 1e9,
            "sha256": digest_tensors(checkpoint) if checkpoint and is_whole else "",
        }
    return found


def _make_spec(scene: Scene, *, background: bool) -> dict[str, Any]:
    """About 5 GB of states: 12 bytes a parameter on the device, which torch's own Adam steps."""
    model = llama(scene.pick(2048, 32), scene.pick(6, 1), intermediate_size=scene.pick(8192, 64))
    return make_spec(
        scene.folder,
        model,
        train={"max_steps": STEPS},
        zero={"stage": 1},
        checkpoint={"save_steps": 2, "save_total_limit": 1, "async_save": background, "save_at_end": False},
    )


def _is_whole(folder: Path) -> bool:
    """Are all files of the manifest there, by size and sha256?"""
    from harness.checkpoints.latest import describe_problem

    return describe_problem(folder, "full") is None


def digest_tensors(checkpoint: Path) -> str:
    """sha256 of all tensors of the files that torch wrote, in their order."""
    import torch
    from torch.utils._pytree import tree_leaves

    digest = hashlib.sha256()
    for file in sorted(checkpoint.rglob("*.pt")):
        content = torch.load(file, map_location="cpu", weights_only=False)  # written a moment ago, by this process
        for tensor in tree_leaves(content):
            if isinstance(tensor, torch.Tensor):
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Both are whole and have the same tensors, and the copy takes no longer than a save in line."""
    reasons = []
    for name in ("in_line", "background"):
        found = figures[name]
        if not found["is_whole"]:
            reasons.append(f"the checkpoint saved {name.replace('_', ' ')} is not whole")
        if not found["gb"] > 0 or found["on_disk_gb"] < 0.99 * found["gb"]:
            reasons.append(f"{name}: {found['gb']:.3g} GB are reported, {found['on_disk_gb']:.3g} GB are on the disk")
    if figures["background"]["sha256"] != figures["in_line"]["sha256"]:
        reasons.append("a save in the background has other tensors than one in line")
    # The last save is at the last step, where training waits for the whole of it.
    behind, in_line = figures["background"]["copy_seconds"], figures["in_line"]["copy_seconds"]
    if not rehearse and behind > in_line:
        reasons.append(f"a save in the background copies for {behind:.2f} s, one in line stalls {in_line:.2f} s")
    return reasons
