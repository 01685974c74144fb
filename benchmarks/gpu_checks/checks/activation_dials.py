# SPDX-License-Identifier: Apache-2.0
"""`train.gradient_checkpointing` of every second layer, with attention kept, and MLPs in tiles: the losses stay as they
are, and on a GPU each peak is below that of kept activations, in the order of the plan.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.device import free_memory, make_deterministic
from benchmarks.gpu_checks.runs import read_lines, train_run
from benchmarks.gpu_checks.training import llama, make_spec

DIALS: dict[str, dict[str, Any]] = {
    "kept": {"gradient_checkpointing": False},
    "every-2": {"gradient_checkpointing": {"recompute_every": 2}},
    "attention": {"gradient_checkpointing": {"keep": "attention"}},
    "all": {"gradient_checkpointing": True},
    "tiles": {"gradient_checkpointing": True, "mlp_tile_size": 256},
}
"""From the most memory to the least."""
ROUNDING = 0.01
"""Of a loss with tiles, in bf16: a gradient is summed over them, and kernels differ by the number of tokens."""


def measure(scene: Scene) -> Figures:
    """Losses, peak bytes and the median seconds of a step of each."""
    import statistics

    import torch

    make_deterministic()
    model = llama(scene.pick(1024, 32), scene.pick(12, 2))
    found: Figures = {}
    for name, train in DIALS.items():
        tile = {"mlp_tile_size": scene.pick(256, 8)} if "mlp_tile_size" in train else {}
        spec = make_spec(
            scene.folder,
            model,
            data={"max_length": scene.pick(4096, 32)},
            train={"max_steps": scene.pick(6, 3), "per_device_train_batch_size": scene.pick(4, 1), **train, **tile},
            optimizer={"learning_rate": 1e-4},  # rounding of tiles grows from step to step with a large one
            zero={"stage": 3, "offload_optimizer": {"device": "cpu"}},
        )
        before = free_memory()
        train_run(scene, scene.folder / name, spec).engine.destroy()
        lines = read_lines(scene.folder / name, "step")
        found[name] = {
            "losses": [line["loss"] for line in lines],
            "seconds": statistics.median(line["seconds"] for line in lines[1:]),
            "peak_bytes": torch.cuda.max_memory_allocated() - before if torch.cuda.is_available() else 0,
        }
    return found


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """The losses of kept activations, and on a GPU less memory from one to the next."""
    reasons = []
    expected = figures["kept"]["losses"]
    for name in DIALS:
        losses, bound = figures[name]["losses"], ROUNDING if name == "tiles" else 0.0
        if not losses or any(abs(a - b) > bound * abs(b) for a, b in zip(losses, expected, strict=True)):
            reasons.append(f"losses of `{name}` are {losses}, and {expected} with kept activations")
    if rehearse:
        return reasons
    for more, less in zip(DIALS, list(DIALS)[1:], strict=False):
        if not 0 < figures[less]["peak_bytes"] < figures[more]["peak_bytes"]:
            peaks = f"{figures[less]['peak_bytes']:,} bytes, and {figures[more]['peak_bytes']:,} of `{more}`"
            reasons.append(f"the peak of `{less}` is {peaks}")
    return reasons
