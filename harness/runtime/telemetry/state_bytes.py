# SPDX-License-Identifier: Apache-2.0
"""Bytes of the model states of a live engine, by tier and kind, named as the planner's rows. Reads only.

Counted after a step, without states that exist only within a micro-batch (gathered parameters, buckets).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from deepspeed.accelerator import get_accelerator

from harness.runtime.engine_protocol import BF16Optimizer, Engine, ZeroStage12Optimizer
from harness.runtime.models.quantized_base import quantized_layers, scale_tensors


def state_bytes(engine: Engine) -> dict[str, int]:
    """`{"gpu.parameters": bytes, ...}` of this rank; `nvme.*` are bytes of files. Empty for an unknown optimizer."""
    try:
        sizes = _count_states(engine)
    except AttributeError:  # another release of DeepSpeed has other attributes
        return {}
    return {name: size for name, size in sizes.items() if size}


def _count_states(engine: Engine) -> dict[str, int]:
    frozen = [getattr(p, "ds_tensor", p) for p in engine.module.parameters() if not p.requires_grad]
    frozen += [scale for layer in quantized_layers(engine.module) for scale in scale_tensors(layer.weight)]
    tier = "host" if getattr(engine.optimizer, "offload_param", None) else None
    return _count_trained_states(engine) | _bytes_by_tier(tier, frozen=frozen)


def _count_trained_states(engine: Engine) -> dict[str, int]:
    wrapper, module, stage = engine.optimizer, engine.module, engine.zero_optimization_stage()
    if stage == 0:
        flat = getattr(wrapper, "fp32_groups_flat", [])
        inner = cast("torch.optim.Optimizer", getattr(wrapper, "optimizer", wrapper))
        trained = [p for p in module.parameters() if p.requires_grad]
        return _bytes_by_tier(parameters=trained, master=flat, states=_optimizer_states(inner))
    if hasattr(wrapper, "fp32_groups_gradients_flat"):
        bf16 = cast("BF16Optimizer", wrapper)
        return _bytes_by_tier(
            parameters=bf16.bf16_groups_flat,
            gradients=bf16.fp32_groups_gradients_flat,
            master=bf16.fp32_groups_flat_partition,
            states=_optimizer_states(bf16.optimizer),
        )
    if stage < 3:
        zero = cast("ZeroStage12Optimizer", wrapper)
        masters = zero.single_partition_of_fp32_groups
        device_bytes = _bytes_by_tier(parameters=zero.bit16_groups_flat)
        offload_tier = "host" if zero.cpu_offload else None
        offload_kinds: dict[str, Iterable[torch.Tensor | None]] = {
            "master": masters,
            "states": _optimizer_states(zero.optimizer),
        }
        if zero.cpu_offload:
            offload_kinds["master_gradients"] = [p.grad for p in masters]
        return device_bytes | _bytes_by_tier(offload_tier, **offload_kinds)
    return _count_stage3_states(wrapper, module)


def _count_stage3_states(zero: Any, module: Any) -> dict[str, int]:
    swapper = next((s for p in module.parameters() if (s := getattr(p, "nvme_swapper", None)) is not None), None)
    parameter_tier = "host" if zero.offload_param else None
    optimizer_tier = "host" if zero.offload_optimizer else None
    sizes = _bytes_by_tier(parameter_tier, parameters=zero.fp16_partitioned_groups_flat)
    sizes |= _bytes_by_tier(optimizer_tier, gradients=[zero.grad_partitions_flat_buffer])
    shards = {t.untyped_storage().data_ptr() for t in zero.fp16_partitioned_groups_flat if t is not None}
    full_parameters = [p.data for p in module.parameters() if p.data.numel() > 0]
    # of a single rank every parameter is its own shard, and stays where it is
    sizes |= _bytes_by_tier(persistent=[t for t in full_parameters if t.untyped_storage().data_ptr() not in shards])
    if swapper is not None:
        sizes["nvme.parameters"] = sum(_file_size(path) for path in swapper.id_to_path.values())
        resident_shards = [p.ds_tensor for p in module.parameters() if p.ds_id not in swapper.id_to_path]
        sizes |= _bytes_by_tier("host", parameters=resident_shards)
    masters = list(zero.fp32_partitioned_groups_flat)
    if zero.swap_optimizer:
        files = [p for p in Path(zero.optimizer_swapper.swap_folder).rglob("*.swp") if p.is_file()]
        gradients = sum(_file_size(p) for p in files if "_gradient_" in p.name)
        sizes |= {"nvme.states": sum(map(_file_size, files)) - gradients, "nvme.gradients": gradients}
        masters = [m for i, m in enumerate(masters) if not zero._swappable_optimizer_subgroup(i)]
    states = _optimizer_states(zero.optimizer, masters if zero.swap_optimizer else None)
    sizes |= _bytes_by_tier(optimizer_tier, master=masters, states=states)
    if zero.offload_optimizer:
        # A buffer of harness/patches/cpu_offload_single_grad.py.
        single_grad = getattr(zero, "gradients_of_a_sub_group", None)
        sizes |= _bytes_by_tier("host", master_gradients=[single_grad, *(p.grad for p in masters)])
    return sizes


def _bytes_by_tier(cpu_tier: str | None = None, **kinds: Iterable[torch.Tensor | None]) -> dict[str, int]:
    """Bytes by `tier.kind`. On a device the tier is that of the tensor's device. On the CPU accelerator it is
    `cpu_tier`, else `gpu`, the planner's name for the memory of the device that computes.
    """
    sizes: dict[str, int] = {}
    on_cpu = get_accelerator().device_name() == "cpu"
    for kind, tensors in kinds.items():
        by_storage = {t.untyped_storage().data_ptr(): t for t in tensors if t is not None}
        for tensor in by_storage.values():
            tier = (cpu_tier or "gpu") if on_cpu else ("host" if tensor.device.type == "cpu" else "gpu")
            name = f"{tier}.{kind}"
            sizes[name] = sizes.get(name, 0) + tensor.untyped_storage().nbytes()
    return sizes


def _optimizer_states(
    optimizer: torch.optim.Optimizer, masters: Iterable[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """The states of all master weights, or of `masters`."""
    state_by_master: Mapping[torch.Tensor, Mapping[str, Any]] = optimizer.state
    entries = (
        state_by_master.values()
        if masters is None
        else [state_by_master[master] for master in masters if master in state_by_master]
    )
    return [t for entry in entries for t in entry.values() if torch.is_tensor(t) and t.numel() > 1]


def _file_size(path: str | Path) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
