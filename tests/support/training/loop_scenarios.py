# SPDX-License-Identifier: Apache-2.0
"""Scenarios of patches that take effect in the harness's loop: telemetry, checkpoints."""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.support.training.engine_scenarios import WIDE
from tests.support.training.patch_sides import LLAMA, Measurement, Side, digest_weights

CHUNK = 8
DELAY = 0.1


def measure_resume(side: Side) -> Measurement:
    """Runs that end with other weights after a resume than without one. DeepSpeed's two ways to compute 0.999^t give
    other numbers at t = 3 and 6, the first step of a resume here, and the same at t = 4, 5, 7 to 13.
    """
    stages: dict[str, Any] = {
        "fused": {"stage": 0},
        "on-cpu": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}},
    }
    different, results = 0, []
    for name, zero in stages.items():
        sections = {"zero": zero, "train": {"max_steps": 7}, "checkpoint": {"save_steps": 5, "save_at_end": False}}
        straight = digest_weights(side.train(name, **sections).engine.module)
        saved = side.folder / name / "checkpoints" / "step-00000005"
        resumed = digest_weights(side.train(f"{name}-resumed", resume=saved, **sections).engine.module)
        different += resumed != straight
        results.append(straight)
    return Measurement(different, results, different)


def measure_compiler_import(side: Side) -> Measurement:
    """Does a run with adapters, which compiles nothing, import torch's compiler?"""
    assert "torch._inductor.compile_fx" not in sys.modules
    ctx = side.train("run", model={"config": LLAMA, "lora": {"r": 2}})
    result = [[row["loss"] for row in side.rows("run")], digest_weights(ctx.engine.module)]
    return Measurement("torch._inductor.compile_fx" in sys.modules, result)


def measure_collective_times(side: Side) -> Measurement:
    """Rank 0 waits in DeepSpeed's collectives for rank 1, which is slow: are its steps without these seconds?"""

    def slow_down(ctx: Any) -> None:
        if side.distributed.rank == 1:
            ctx.engine.module.register_forward_pre_hook(lambda *_: time.sleep(DELAY))

    ctx = side.train("run", zero={"stage": 2}, change=slow_down)
    rows = side.rows("run")
    counted, slept = sum(row.get("seconds_communication", 0.0) for row in rows), DELAY * 2 * len(rows)
    return Measurement(counted < slept / 2, [[row["loss"] for row in rows], digest_weights(ctx.engine.module)], counted)


def measure_swapped_bytes(side: Side) -> Measurement:
    """Steps that say nothing of what was swapped."""
    ctx = side.train(
        "run",
        model={"config": {**LLAMA, **WIDE}},
        zero={"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(side.folder / "nvme")}},
        telemetry={"gather_steps": 1},
    )
    rows = side.rows("run")
    silent = sum(not row.get("nvme_read_bytes") for row in rows)
    return Measurement(silent, [[row["loss"] for row in rows], digest_weights(ctx.engine.module)], rows[-1:])


def measure_logits(side: Side) -> Measurement:
    """Tokens whose logits the head returns at once, beyond those of a chunk."""
    rows: list[int] = []

    def count_tokens(ctx: Any) -> None:
        head = ctx.engine.module.get_output_embeddings()
        head.register_forward_hook(
            lambda _module, _inputs, output: rows.append(output.shape[-2] if output.dim() else 0)
        )

    side.train("run", zero={"stage": 2}, train={"loss_chunk_size": CHUNK}, change=count_tokens)
    return Measurement(max(0, max(rows) - CHUNK), [row["loss"] for row in side.rows("run")], len(rows))
