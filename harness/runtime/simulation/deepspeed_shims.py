# SPDX-License-Identifier: Apache-2.0
"""Functions of DeepSpeed that need values of tensors, other ranks or compiled ops, as the simulated device has them.

`shims.SHIMS` has the reason of each.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from harness.runtime.simulation.compiled_ops import CompiledOps
from harness.runtime.simulation.memory_tracker import MemoryTracker


def replace_builders(_: MemoryTracker) -> None:
    """Load no extension: its functions check devices (`CompiledOps`)."""
    from deepspeed.ops.op_builder import pin_memory_load
    from deepspeed.ops.op_builder.builder import OpBuilder

    OpBuilder.jit_load = OpBuilder.load = lambda self, *_, **__: CompiledOps(self.NAME)
    original = pin_memory_load.load_pin_memory_module
    for module in list(sys.modules.values()):
        if (
            getattr(module, "__name__", "").startswith("deepspeed")
            and vars(module).get("load_pin_memory_module") is original
        ):
            module.load_pin_memory_module = lambda *_, **__: CompiledOps("pin_memory")  # type: ignore[attr-defined]


def answer_for_rank0(_: MemoryTracker) -> None:
    """Send what rank 0 would send, and take this rank's own values for the answer."""
    from deepspeed.runtime.zero import utils

    original = utils.get_lst_from_rank0

    def get_list(values: list[int]) -> list[int]:
        original(values)
        return values

    def check_length(values: list[int]) -> None:
        original([len(values)])  # one number, as DeepSpeed's own function sends

    utils.get_lst_from_rank0, utils.assert_lst_len_same_as_other_ranks = get_list, check_length


def build_mesh_with_values(_: MemoryTracker) -> None:
    """Make the groups of a device mesh outside the fake mode: their ranks are values."""
    from deepspeed.comm.torch import TorchBackend
    from torch.utils._python_dispatch import _disable_current_modes

    original = TorchBackend.init_device_mesh

    def init_device_mesh(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return original(self, *args, **kwargs)

    TorchBackend.init_device_mesh = init_device_mesh


def broadcast_sizes(_: MemoryTracker) -> None:
    """Broadcast the lengths of pickled objects, and nothing pickled."""
    from deepspeed.comm.torch import TorchBackend
    from deepspeed.runtime import engine

    def broadcast_objects(_: Any, object_list: list[Any], src: int, group: Any = None, device: Any = None) -> None:
        torch.distributed.broadcast(torch.empty(len(object_list), dtype=torch.long, device=device), src, group)
        torch.distributed.broadcast(torch.empty(0, dtype=torch.uint8, device=device), src, group)

    TorchBackend.broadcast_object_list = broadcast_objects
    engine.compare_tensors_in_structures = lambda *_: True


def assume_even_vocabulary(_: MemoryTracker) -> None:
    """Gather the bounds of the vocabulary's shards; those of other ranks are as long as this one's."""
    from deepspeed import comm
    from deepspeed.sequence import cross_entropy

    original = cross_entropy._validate_vocab_shard_bounds

    def validate(local_size: int, start: int, end: int, group: Any, device: Any) -> Any:
        num_ranks = 1 if group is None else torch.distributed.get_world_size(group)
        if num_ranks == 1:
            return original(local_size, start, end, group, device)
        bounds = torch.tensor([start, end, local_size], dtype=torch.long, device=device)
        gathered = torch.empty(3 * num_ranks, dtype=torch.long, device=device)
        comm.all_gather_into_tensor(gathered, bounds, group=group)
        return max(end, local_size * num_ranks)

    cross_entropy._validate_vocab_shard_bounds = validate
