# SPDX-License-Identifier: Apache-2.0
"""This rank's place: its part of the batch, of each layer, of the stack of layers and of each sequence.

Arithmetic on the degrees; no process group is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.run.resolved_run import ParallelDims


@dataclass(frozen=True, slots=True)
class Topology:
    """world = data x tensor x pipeline x sequence, and this rank's index along each.

    Ranks that share a micro-batch by tensor or sequence parallelism are neighbours, as DeepSpeed's groups have them;
    pipeline stages are outermost, as in its `PipeDataParallelTopology`.
    """

    world_size: int
    rank: int
    data_parallel_size: int
    data_parallel_rank: int
    tensor_parallel_size: int = 1
    tensor_parallel_rank: int = 0
    pipeline_parallel_size: int = 1
    pipeline_stage: int = 0
    sequence_parallel_size: int = 1
    sequence_parallel_rank: int = 0

    @staticmethod
    def from_dims(dims: ParallelDims, world_size: int, rank: int) -> Topology:
        """The place of `rank` among `world_size` ranks. Raises ValueError when the degrees do not divide the world."""
        if world_size % dims.model_parallel_size:
            raise ValueError(f"{world_size} ranks are not a multiple of {dims.model_parallel_size}")
        ranks_per_data_rank = dims.tensor * dims.sequence
        data_size = world_size // dims.model_parallel_size
        stage, stage_rank = divmod(rank, world_size // dims.pipeline)
        data_rank, shard = divmod(stage_rank, ranks_per_data_rank)
        sequence_rank, tensor_rank = divmod(shard, dims.tensor)
        return Topology(
            world_size,
            rank,
            data_size,
            data_rank,
            dims.tensor,
            tensor_rank,
            dims.pipeline,
            stage,
            dims.sequence,
            sequence_rank,
        )

    @property
    def model_parallel_size(self) -> int:
        """Ranks that compute the same micro-batch, each its part of it."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.sequence_parallel_size
