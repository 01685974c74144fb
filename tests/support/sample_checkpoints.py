# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of plain files, as a save would have left them: for what needs no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from harness.checkpoints import manifest
from harness.checkpoints.latest import LATEST, checkpoint_name

CONTENTS = {
    "global_step{step}/mp_rank_00_model_states.pt": b"model " * 4000,
    "global_step{step}/zero_pp_rank_0_mp_rank_00_optim_states.pt": b"first " * 7000,
    "global_step{step}/zero_pp_rank_1_mp_rank_00_optim_states.pt": b"other " * 7000,
    "rank-00000.pt": b"random",
    "huggingface/config.json": b"{}",
}
SPEC = {
    "name": None,
    "model": {"name_or_path": "m"},
    "data": {"train": "t.txt", "max_length": 32, "shuffle": True},
    "train": {"seed": 1, "max_steps": 10, "per_device_train_batch_size": 2},
    "optimizer": {"type": "adamw", "learning_rate": 1e-3},
    "zero": {"stage": 2, "offload_optimizer": None, "reduce_bucket_size": None},
    "parallel": {"tensor_parallel_size": 1},
    "checkpoint": {"save_steps": 2},
}
HASHES = {"data": "d", "tokenizer": "t", "chat_template": None, "model_config": "c"}


def body(step: int, **changed: Any) -> dict[str, Any]:
    """A manifest without files."""
    whole: dict[str, Any] = {
        "name": checkpoint_name(step),
        "tag": f"global_step{step}",
        "state": {
            "step": step,
            "samples": step * 8,
            "tokens": step * 256,
            "position": {"epoch": 0, "offset": step * 8},
        },
        "world": 2,
        "zero_stage": 2,
        "dtype": "bfloat16",
        "layout": "shared",
        "saved_at": "2026-11-21T19:00:00Z",
        "versions": {"deepspeed": "0.19.8"},
        "spec": SPEC,
        "sha256": HASHES,
    }
    return whole | changed


def make(folder: Path, step: int, **changed: Any) -> Path:
    """One complete checkpoint below `folder`, which `latest` then names."""
    path = folder / checkpoint_name(step)
    files = {}
    for pattern, start in CONTENTS.items():
        name, content = pattern.format(step=step), start + str(step).encode()
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "rank": 0, "node": 0}
    manifest.write_manifest(path, body(step, **changed) | {"files": files})
    (folder / LATEST).write_text(path.name + "\n")
    return path
