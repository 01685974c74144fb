# SPDX-License-Identifier: Apache-2.0
"""The facts of a run that decide which patches it needs, the same for the gates, the planner and the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.patches.patch_registry import PatchFacts
from harness.run.resolved_run import ResolvedRun
from harness.spec.deepspeed_optimizer import deepspeed_optimizer


def patch_facts(
    run: ResolvedRun,
    ds_config: Mapping[str, Any] | None = None,
    *,
    on_cpu_accelerator: bool = False,
    is_resumed: bool = True,
) -> PatchFacts:
    """The facts of a run. `ds_config` is its DeepSpeed JSON; None where it is not rendered yet.

    A run may be resumed unless it is known to start from step 0. A pipeline computes its loss in a layer of its own.
    """
    spec = run.spec
    engine_facts = PatchFacts.from_ds_config(_engine_settings(run) if ds_config is None else ds_config)
    return engine_facts._replace(
        on_cpu_accelerator=on_cpu_accelerator,
        has_plugins=spec.plugins.file is not None,
        overlap_step_gib=spec.zero.overlap_step_gib,
        loss_chunk_size=0 if run.parallel_dims.pipeline > 1 else run.loss_chunk_size,
        has_layer_checkpointing=run.checkpointing is not None,
        is_pretrained=spec.model.name_or_path is not None and not spec.model.random_init,
        sequence_size=run.parallel_dims.sequence,
        pipeline_size=run.parallel_dims.pipeline,
        tensor_size=run.parallel_dims.tensor,
        saves_checkpoints=spec.checkpoint.save_at_end or spec.checkpoint.save_steps is not None,
        is_resumed=is_resumed,
    )


def _engine_settings(run: ResolvedRun) -> Mapping[str, Any]:
    """The blocks of the DeepSpeed JSON that `PatchFacts.from_ds_config` reads."""
    spec = run.spec
    own_optimizer = {"type": deepspeed_optimizer(spec.optimizer)[0]}
    settings: Mapping[str, Any] = {
        "zero_optimization": spec.zero.model_dump(mode="json", exclude_none=True),
        "optimizer": {} if "optimizer" in spec.deepspeed else own_optimizer,
        "bf16": {"enabled": spec.precision.bf16},
        "fp16": {"enabled": spec.precision.fp16},
    }
    for default in run.tuned_defaults or ():
        value = default.value
        for name in reversed(default.key.split(".")):
            value = {name: value}
        settings = _merge(settings, value)
    return _merge(settings, spec.deepspeed)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `above`, and those of `below` that it does not have, block by block."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], Mapping) and isinstance(above[name], Mapping):
            merged[name] = _merge(below[name], above[name])
    return merged
