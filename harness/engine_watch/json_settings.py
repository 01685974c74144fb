# SPDX-License-Identifier: Apache-2.0
"""The settings that a DeepSpeed JSON expects of the engine; None for each that it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.run.resolved_run import ParallelDims
from harness.runtime.engine_checks.expected_settings import TORCH_DTYPES, ExpectedSettings, torch_dtype_name


def expected_settings_of_json(config: Mapping[str, Any], world_size: int) -> ExpectedSettings:
    """The expected settings of an engine with this JSON on `world_size` ranks. `"auto"` leaves a setting open."""

    def get(path: str) -> Any:
        value: Any = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value == "auto" else value

    precision = next((key for key in ("bf16", "bfloat16", "fp16") if get(f"{key}.enabled") is True), "fp32")
    offloads = {kind: get(f"zero_optimization.offload_{kind}") or {} for kind in ("optimizer", "param")}
    places = {kind: block if isinstance(block, Mapping) else {} for kind, block in offloads.items()}
    optimizer = get("optimizer.type")
    autocast = get("torch_autocast.enabled") is True
    return ExpectedSettings(
        zero_stage=_number(get("zero_optimization.stage") if get("zero_optimization") is not None else 0),
        offload_optimizer=str(places["optimizer"].get("device") or "none"),
        offload_param=str(places["param"].get("device") or "none"),
        offload_ratio=float(_number(places["optimizer"].get("ratio")) or 1.0),
        nvme_paths=tuple(
            str(p["nvme_path"]) for p in places.values() if p.get("device") == "nvme" and p.get("nvme_path")
        ),
        dtype=TORCH_DTYPES[precision],
        master_dtype=TORCH_DTYPES[precision] if _has_low_precision_masters(get, precision) else "float32",
        accumulation_dtype=torch_dtype_name(get("data_types.grad_accum_dtype")),
        communication_dtype=torch_dtype_name(get("communication_data_type")),
        autocast_dtype=(torch_dtype_name(get("torch_autocast.dtype")) or "any") if autocast else None,
        gradient_clipping=_number(get("gradient_clipping")),
        micro_batch_size=_number(get("train_micro_batch_size_per_gpu")),
        gradient_accumulation_steps=_number(get("gradient_accumulation_steps")),
        global_batch_size=_number(get("train_batch_size")),
        optimizer=optimizer.lower() if isinstance(optimizer, str) else "",
        optimizer_params=get("optimizer.params") or {},
        scheduler=None,
        ds_scheduler=get("scheduler"),
        parallel_dims=ParallelDims(world_size, 1, 1, 1),
        hpz_partition_size=1,
        expert_parallel_size=1,
        compile_enabled=False,
        is_random_init=False,
        seed=0,
        uses_accelerators=None,
    )


def _has_low_precision_masters(get: Any, precision: str) -> bool:
    return any(get(f"{precision}.{name}_master_weights_and_grads") is True for name in ("bf16", "fp16"))


def _number(value: Any) -> Any:
    """None for what is no number: DeepSpeed reads it in a way of its own."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
