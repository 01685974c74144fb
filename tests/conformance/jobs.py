# SPDX-License-Identifier: Apache-2.0
"""From a file to the job that `server.py` runs: the JSON that DeepSpeed gets, the ranks, the model and the degrees.

Renders leniently: no gate is asked here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.spec_loader import load_spec

from .shapes import small


def from_spec(file: str, overrides: Sequence[str] = (), world: int | None = None) -> dict[str, Any]:
    """The job of a run spec. Raises ValueError when it cannot be loaded (then there is nothing to render)."""
    loaded = load_spec(file, overrides)
    if loaded.spec is None:
        raise ValueError("; ".join(f"{f.gate} {f.message}" for f in loaded.findings))
    return of_run(resolve_run(loaded.spec, world_size=world or loaded.spec.launch.num_gpus or 2))


def of_run(run: ResolvedRun) -> dict[str, Any]:
    """The job of a resolved run: what `harness launch` would have DeepSpeed do."""
    degrees = run.parallel_dims
    return {
        "config": json.loads(render_ds_config(with_tuned_defaults(run)).json_text),
        "world": degrees.world_size or 2,
        "model": model_of(run),
        "tensor": degrees.tensor,
        "pipeline": degrees.pipeline,
        "sequence": degrees.sequence,
        "recompute": run.spec.train.gradient_checkpointing,
    }


def model_of(run: ResolvedRun) -> dict[str, Any]:
    """The small model that stands for the spec's: its kind and, where they are small, its own numbers."""
    if run.parallel_dims.pipeline > 1:
        return {"kind": "pipe", "layers": 4}
    kernel = run.spec.model.attn_implementation
    return small(run.spec.model.config or {}) | ({"attn_implementation": kernel} if kernel in ("eager", "sdpa") else {})


def from_json(text: str, world: int, **degrees: int) -> dict[str, Any]:
    """The job of a DeepSpeed JSON as a user hands it over."""
    try:
        config = json.loads(text)
    except ValueError:
        return {"text": text, "config": {}, "world": world, "model": {"kind": "llama"}}
    tensor = config.get("tensor_parallel") if isinstance(config, dict) else None
    size = tensor.get("autotp_size") if isinstance(tensor, dict) else 1
    job = {"config": config, "world": world, "model": {"kind": "llama"}, "tensor": size if isinstance(size, int) else 1}
    return {**job, **degrees}
