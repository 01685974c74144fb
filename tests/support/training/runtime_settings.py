# SPDX-License-Identifier: Apache-2.0
"""The configurations that parity, resume and export are tested on: every stage, with and without CPU offload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec

STEPS, WARMUP, LENGTH, SEED, DECAY = 6, 2, 32, 7, 0.1

CASES: dict[str, tuple[int, tuple[str, ...], bool]] = {
    # name: (stage, what is offloaded to the CPU, bf16)
    "zero0": (0, (), False),
    "zero1": (1, (), False),
    "zero2": (2, (), False),
    "zero3": (3, (), False),
    "zero1-cpu": (1, ("optimizer",), False),
    "zero2-cpu": (2, ("optimizer",), False),
    "zero3-cpu": (3, ("optimizer",), False),
    "zero3-cpu-all": (3, ("optimizer", "param"), False),
    "zero2-bf16": (2, (), True),
    "zero3-cpu-bf16": (3, ("optimizer",), True),
}


def config(case: str) -> dict[str, Any]:
    """The DeepSpeed JSON, as the harness renders it for two ranks."""
    chosen = RunSpec.model_validate_json(json.dumps(spec(case, Path("model"))))
    return dict(render_ds_config(resolve_run(chosen, world_size=2)).config)


def spec(case: str, model: Path) -> dict[str, Any]:
    """The run spec."""
    stage, offloaded, bf16 = CASES[case]
    return {
        "name": case,
        "model": {"name_or_path": str(model)},
        "data": {"train": "builtin:python-docs", "max_length": LENGTH},
        "train": {
            "max_steps": STEPS,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "seed": SEED,
            "max_grad_norm": 0.5,
        },
        "optimizer": {"learning_rate": 3e-3, "weight_decay": DECAY, "betas": [0.9, 0.95]},
        "scheduler": {"type": "cosine", "warmup_steps": WARMUP},
        "precision": {"bf16": bf16},
        "zero": {"stage": stage, **{f"offload_{what}": {"device": "cpu"} for what in offloaded}},
        "eval": {"eval_steps": 4, "max_batches": 2},
        "checkpoint": {"save_steps": 3},
    }
