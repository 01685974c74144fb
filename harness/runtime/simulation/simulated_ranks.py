# SPDX-License-Identifier: Apache-2.0
"""The process group of the loop where the other ranks do not exist: each would say what this one says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe import p2p, schedule

from harness.runtime.distributed import Distributed
from harness.runtime.pipeline.layers import Decoder, Norm, PositionEmbedding
from harness.runtime.simulation.device import SimulatedRank
from harness.runtime.step_timer import StepTimer

T = TypeVar("T")


class SimulatedDistributed(Distributed):
    """`Distributed` without messages."""

    def barrier(self) -> None:
        """Nobody is waited for."""

    def long_barrier(self) -> None:
        """Nobody is waited for."""

    def all_gather_object(self, value: T) -> list[T]:
        """The value, once for each rank."""
        return [value] * self.world_size

    def gather_to_main_async(self, values: Sequence[float]) -> Callable[[], list[list[float]]]:
        """The values, once for each rank."""
        rows = [list(values)] * self.world_size if self.is_main_process else []
        return lambda: rows

    def any_rank(self, flag: bool) -> bool:
        """The flag."""
        return flag


def simulated_distributed(rank: SimulatedRank) -> SimulatedDistributed:
    """This rank on `cuda:0`."""
    group = cast("dist.ProcessGroup", dist.group.WORLD)
    return SimulatedDistributed(
        rank.rank,
        rank.world_size,
        rank.local_rank,
        torch.device("cuda:0"),
        control_group=group,
    )


_META_SIZE = 256
"""`TENSOR_META_SIZE` of deepspeed/runtime/pipe/engine.py."""
_PHASES: dict[type, str] = {
    schedule.ForwardPass: "forward",
    schedule.BackwardPass: "backward",
    schedule.OptimizerStep: "optimizer",
}


def install_stage_inputs(engine: Any, rows: int, length: int, hidden_size: int) -> None:
    """Make the engine receive (rows, length, hidden_size) and, but for a stage that begins with the head, positions
    (rows, length), where it would read their shapes from the message of the stage before.
    """

    def receive_shapes(send_stage: int) -> Any:
        p2p.recv(torch.empty(_META_SIZE, dtype=torch.int32, device=engine.device), send_stage)
        dtype = next(engine.module.parameters()).dtype
        hidden = engine._allocate_or_extend_buffers(0, [rows, length, hidden_size], dtype)
        if not isinstance(engine.module.forward_funcs[0], (Decoder, Norm, PositionEmbedding)):
            return hidden
        return hidden, engine._allocate_or_extend_buffers(1, [rows, length], torch.int64)

    engine._recv_tensor_meta = receive_shapes


def enter_phases(engine: Any, timer: StepTimer) -> None:
    """Enter the phase of each instruction of the schedule; all others count to the one before."""

    def in_phase(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
            with timer.span(name):
                return function(self, *args, **kwargs)

        return execute

    instructions = dict(engine._INSTRUCTION_MAP)
    for instruction, name in _PHASES.items():
        instructions[instruction] = in_phase(instructions[instruction], name)
    engine._INSTRUCTION_MAP = instructions
