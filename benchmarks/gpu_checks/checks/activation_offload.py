# SPDX-License-Identifier: Apache-2.0
"""`train.offload_activations`: the losses stay as they are, and on a GPU the peak is lower."""

from __future__ import annotations

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.device import free_memory, make_deterministic
from benchmarks.gpu_checks.runs import read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_spec


def measure(scene: Scene) -> Figures:
    """Losses and peak bytes without and with it."""
    import torch

    make_deterministic()
    model = llama(scene.pick(2048, 32), scene.pick(12, 2), max_position_embeddings=8192)
    found: Figures = {}
    for name, offloaded in (("kept", False), ("offloaded", True)):
        spec = make_spec(
            scene.folder,
            model,
            data={"max_length": scene.pick(8192, 32)},
            train={
                "max_steps": scene.pick(5, 3),
                "gradient_accumulation_steps": 2,
                "gradient_checkpointing": True,
                "offload_activations": offloaded,
            },
            zero={"stage": 3, "offload_optimizer": {"device": "cpu"}},
        )
        before = free_memory()
        train_run(scene, scene.folder / name, spec).engine.destroy()
        found[name] = {
            "losses": [line["loss"] for line in read_lines(scene.folder / name, "step")],
            "peak_bytes": torch.cuda.max_memory_allocated() - before if torch.cuda.is_available() else 0,
        }
    return found


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Equal losses, and less memory on a GPU."""
    kept, offloaded, reasons = figures["kept"], figures["offloaded"], []
    if not kept["losses"] or kept["losses"] != offloaded["losses"]:
        reasons.append(f"losses are {offloaded['losses']}, and {kept['losses']} without it")
    if not rehearse and not 0 < offloaded["peak_bytes"] < kept["peak_bytes"]:
        reasons.append(f"the peak is {offloaded['peak_bytes']:,} bytes, and {kept['peak_bytes']:,} without it")
    return reasons
