# SPDX-License-Identifier: Apache-2.0
"""Optimizer states on NVMe: into an ordinary shard and back, one sub-group at a time.

DeepSpeed writes empty tensors for swapped-out states, copies its swap files next to them, and on load leaves the
optimizer out: Adam restarts from zero, silently. Here a shard gets the true values, as views of the swap files that are
read during the write, so that it equals the shard of a run with the optimizer on the CPU. On load each sub-group is
swapped in, filled and swapped out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def uses_nvme(optimizer: Any) -> bool:
    """Does this ZeRO-3 optimizer hold states, or parameters, on NVMe?"""
    return bool(getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False))


def with_swapped_tensors(optimizer: Any, state_dict: Any) -> Any:
    """`state_dict` with every swapped-out tensor replaced by a read-only view of its swap file. Reads nothing yet."""
    files = _map_swap_files(optimizer)
    return _replace_tensors(state_dict, files) if files else state_dict


def _map_swap_files(optimizer: Any) -> dict[int, torch.Tensor]:
    """id of a swapped-out tensor -> the values in its swap file.

    Between steps no transfer is in flight, and all states are swapped out. Their tensors are empty with the plain
    swapper and with `nvme_release`; with the pipelined swapper alone they are views of buffers that hold other
    sub-groups by now.
    """
    if not getattr(optimizer, "swap_optimizer", False):
        return {}
    return {
        id(context.compute_tensor): torch.from_file(
            str(context.swap_path), shared=False, size=info.numel(), dtype=info.dtype()
        )
        for info in optimizer.optimizer_swapper.swap_params_info.values()
        for context in info.tensors
    }


def _replace_tensors(value: Any, files: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return files.get(id(value), value)
    if isinstance(value, dict):
        return {k: _replace_tensors(v, files) for k, v in value.items()}
    if isinstance(value, list):
        return [_replace_tensors(v, files) for v in value]
    return value


@contextmanager
def patch_load_state_dict(optimizer: Any) -> Iterator[None]:
    """During `engine.load_checkpoint`, an optimizer on NVMe loads its shard with `fill_sub_group`."""
    if not uses_nvme(optimizer):
        yield
        return

    def load_state_dict(state_dict_list: list[Any], *_: Any, **__: Any) -> None:
        _load_shard(optimizer, next(shard for shard in state_dict_list if shard is not None))

    optimizer.load_state_dict = load_state_dict
    try:
        yield
    finally:
        del optimizer.load_state_dict


def _load_shard(optimizer: Any, shard: dict[str, Any]) -> None:
    """Load a whole shard: scaler, hyper-parameters of the groups, and every sub-group."""
    optimizer.loss_scaler = shard["loss_scaler"]
    optimizer.dynamic_loss_scale = shard["dynamic_loss_scale"]
    optimizer.overflow = shard["overflow"]
    inner = shard["optimizer_state_dict"]
    for group, saved_group in zip(optimizer.optimizer.param_groups, inner["param_groups"], strict=True):
        group.update({key: value for key, value in saved_group.items() if key != "params"})
    # torch numbers states group after group; a sub-group's number is its place in that order.
    order = sorted(range(len(optimizer.fp16_groups)), key=lambda i: (optimizer.sub_group_to_group_id[i], i))
    for number, sub_group in enumerate(order):
        fill_sub_group(optimizer, sub_group, shard["fp32_flat_groups"][sub_group], inner["state"].get(number, {}))
    if optimizer.persistent_parameters:  # `checkpoint_event_epilogue` gathers them again
        optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)


def fill_sub_group(optimizer: Any, sub_group: int, fp32: torch.Tensor, states: dict[str, Any]) -> None:
    """Fill sub-group `sub_group` of a ZeRO-3 optimizer with master weights (flat fp32) and optimizer states (flat
    tensors and plain values by name); its 16-bit partition follows. On NVMe it is swapped in before, and out after.
    """
    swappable = optimizer._swappable_optimizer_subgroup(sub_group)
    if swappable:
        optimizer._optimizer_states_and_gradient_swap_in(sub_group)
    master = optimizer.fp32_partitioned_groups_flat[sub_group]
    master.data.copy_(fp32)
    target = optimizer.optimizer.state[master]
    for name, value in states.items():
        if not isinstance(value, torch.Tensor):
            target[name] = value
        elif isinstance(target.get(name), torch.Tensor) and target[name].shape == value.shape:
            target[name].copy_(value)
        else:
            target[name] = value.to(master.device, copy=True)
    optimizer._reassign_or_swap_out_partitioned_parameters(sub_group)
    if swappable:
        optimizer._optimizer_states_and_gradient_swap_out(sub_group)
