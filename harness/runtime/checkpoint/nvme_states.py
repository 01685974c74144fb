"""Optimizer states on NVMe: into an ordinary shard and back, one sub-group at a time.

DeepSpeed writes empty tensors for what is swapped out, copies its swap files beside them, and on load leaves the
optimizer out: Adam starts anew without a word. Here a shard gets the true values, as views of the swap files that are
read while it is written, so that it is what a run with the optimizer on the CPU would have written; and on load each
sub-group is swapped in, filled and swapped out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def uses_nvme(optimizer: Any) -> bool:
    """Does this ZeRO-3 optimizer keep states, or parameters, on NVMe?"""
    return bool(getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False))


def with_swapped_tensors(optimizer: Any, state_dict: Any) -> Any:
    """`state_dict` with every swapped-out tensor replaced by a read-only view of its swap file; nothing is read yet."""
    files = _map_swap_files(optimizer)
    return _replace_tensors(state_dict, files) if files else state_dict


def _map_swap_files(optimizer: Any) -> dict[int, torch.Tensor]:
    """id of a swapped-out tensor -> the values in its swap file.

    Between steps no transfer is on its way, and everything that is ever swapped is out. Its tensors are empty with the
    plain swapper and where `nvme_release` is installed; else with the pipelined one they are views of buffers that have
    been filled with other sub-groups since.
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
    """For the time of `engine.load_checkpoint`, an optimizer that swaps takes its shard by `put`."""
    if not uses_nvme(optimizer):
        yield
        return

    def load_state_dict(state_dict_list: list[Any], *_: Any, **__: Any) -> None:
        _load_shard(optimizer, next(state for state in state_dict_list if state is not None))

    optimizer.load_state_dict = load_state_dict
    try:
        yield
    finally:
        del optimizer.load_state_dict


def _load_shard(optimizer: Any, saved: dict[str, Any]) -> None:
    """A whole shard: scaler, hyper-parameters of the groups, and every sub-group."""
    optimizer.loss_scaler = saved["loss_scaler"]
    optimizer.dynamic_loss_scale = saved["dynamic_loss_scale"]
    optimizer.overflow = saved["overflow"]
    inner = saved["optimizer_state_dict"]
    for group, was in zip(optimizer.optimizer.param_groups, inner["param_groups"], strict=True):
        group.update({key: value for key, value in was.items() if key != "params"})
    # torch numbers states group after group; a sub-group's number is its place in that order.
    order = sorted(range(len(optimizer.fp16_groups)), key=lambda i: (optimizer.sub_group_to_group_id[i], i))
    for number, sub_group in enumerate(order):
        fill_sub_group(optimizer, sub_group, saved["fp32_flat_groups"][sub_group], inner["state"].get(number, {}))
    if optimizer.persistent_parameters:  # gathered anew by `checkpoint_event_epilogue`
        optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)


def fill_sub_group(optimizer: Any, sub_group: int, fp32: torch.Tensor, states: dict[str, Any]) -> None:
    """Give sub-group `sub_group` of a ZeRO-3 optimizer these master weights (flat fp32) and optimizer states (flat
    tensors and plain values by name); its 16-bit partition follows. Swapped in before and out after, where it swaps.
    """
    swapping = optimizer._swappable_optimizer_subgroup(sub_group)
    if swapping:
        optimizer._optimizer_states_and_gradient_swap_in(sub_group)
    master = optimizer.fp32_partitioned_groups_flat[sub_group]
    master.data.copy_(fp32)
    kept = optimizer.optimizer.state[master]
    for name, value in states.items():
        if not isinstance(value, torch.Tensor):
            kept[name] = value
        elif isinstance(kept.get(name), torch.Tensor) and kept[name].shape == value.shape:
            kept[name].copy_(value)
        else:
            kept[name] = value.to(master.device, copy=True)
    optimizer._reassign_or_swap_out_partitioned_parameters(sub_group)
    if swapping:
        optimizer._optimizer_states_and_gradient_swap_out(sub_group)
