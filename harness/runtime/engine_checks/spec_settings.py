# SPDX-License-Identifier: Apache-2.0
"""The settings that spec and launch expect of the engine. The DeepSpeed JSON is never read: it may be wrong.

The section `deepspeed` of a spec overrides what is rendered, so it overrides here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.run.resolved_run import ParallelDims, ResolvedRun
from harness.runtime.engine_checks.expected_settings import TORCH_DTYPES, ExpectedSettings, torch_dtype_name
from harness.runtime.models.model_config import is_random_init
from harness.spec.deepspeed_optimizer import deepspeed_optimizer


def expected_settings_of(run: ResolvedRun, world_size: int, uses_accelerators: bool | None) -> ExpectedSettings:
    """The expected settings of a run on `world_size` ranks."""
    spec, overrides = run.spec, run.spec.deepspeed

    def get_override(path: str, default: Any) -> Any:
        value: Any = overrides
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    zero, dims = (
        spec.zero,
        ParallelDims(world_size, run.parallel_dims.tensor, run.parallel_dims.pipeline, run.parallel_dims.sequence),
    )
    name, params = deepspeed_optimizer(spec.optimizer)
    if isinstance(overrides.get("optimizer"), Mapping):  # instead of the spec's own, not laid over it
        name, params = overrides["optimizer"].get("type", ""), dict(overrides["optimizer"].get("params") or {})
    offloads = {}
    for kind, section in (("optimizer", zero.offload_optimizer), ("param", zero.offload_param)):
        values = {} if section is None else section.model_dump()
        offloads[kind] = values | dict(get_override(f"zero_optimization.offload_{kind}", {}) or {})
    precision = next((f for f, on in (("bf16", spec.precision.bf16), ("fp16", spec.precision.fp16)) if on), "fp32")
    for key in ("bf16", "fp16"):
        precision = key if get_override(f"{key}.enabled", False) is True else precision
    has_low_precision_master = get_override(f"{precision}.{precision}_master_weights_and_grads", False)
    autocast = get_override("torch_autocast.enabled", False)
    scheduler = get_override("scheduler", None)
    experts = get_override("expert_parallel", None)
    return ExpectedSettings(
        zero_stage=get_override("zero_optimization.stage", zero.stage),
        offload_optimizer=str(offloads["optimizer"].get("device") or "none"),
        offload_param=str(offloads["param"].get("device") or "none"),
        offload_ratio=float(offloads["optimizer"].get("ratio") or 1.0),
        nvme_paths=tuple(
            str(o["nvme_path"]) for o in offloads.values() if o.get("device") == "nvme" and o.get("nvme_path")
        ),
        dtype=TORCH_DTYPES[precision],
        master_dtype=TORCH_DTYPES[precision] if has_low_precision_master else "float32",
        accumulation_dtype=torch_dtype_name(get_override("data_types.grad_accum_dtype", None)),
        communication_dtype=torch_dtype_name(get_override("communication_data_type", None)),
        autocast_dtype=(torch_dtype_name(get_override("torch_autocast.dtype", None)) or "any")
        if autocast is True
        else None,
        gradient_clipping=get_override("gradient_clipping", spec.train.max_grad_norm),
        micro_batch_size=get_override("train_micro_batch_size_per_gpu", run.batch.micro_batch),
        gradient_accumulation_steps=get_override("gradient_accumulation_steps", run.batch.accumulation),
        global_batch_size=run.batch.global_batch,
        optimizer=str(name).lower(),
        optimizer_params=params,
        scheduler=None if scheduler else spec.scheduler,
        ds_scheduler=scheduler or None,
        parallel_dims=dims,
        hpz_partition_size=get_override("zero_optimization.zero_hpz_partition_size", 1),
        expert_parallel_size=int(experts.get("autoep_size", experts.get("ep_size", 1)))
        if isinstance(experts, Mapping)
        else 1,
        compile_enabled=spec.train.torch_compile or get_override("compile.deepcompile", False) is True,
        is_random_init=is_random_init(spec.model) and spec.plugins.file is None and spec.objective == "causal_lm",
        seed=spec.train.seed,
        uses_accelerators=uses_accelerators,
    )
