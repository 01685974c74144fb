"""This rank's place: which part of the batch, of each layer, of the stack of layers and of each sequence is its own.

Arithmetic on the degrees; no process group is made or asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.plan.run import Degrees


@dataclass(frozen=True, slots=True)
class Topology:
    """world = data x tensor x pipeline x sequence, and this rank's index along each.

    Ranks that share a micro-batch by tensor or sequence parallelism are neighbours, as DeepSpeed's groups have them;
    pipeline stages are outermost, as in its `PipeDataParallelTopology`.
    """

    world: int
    rank: int
    data_size: int
    data_rank: int
    tensor_size: int = 1
    tensor_rank: int = 0
    pipeline_size: int = 1
    stage: int = 0
    sequence_size: int = 1
    sequence_rank: int = 0

    @staticmethod
    def of(degrees: Degrees, world: int, rank: int) -> Topology:
        """The place of `rank` among `world` ranks. Raises ValueError when the degrees do not divide the world."""
        if world % degrees.model_parallel:
            raise ValueError(f"{world} ranks are not a multiple of {degrees.model_parallel}")
        together = degrees.tensor * degrees.sequence
        data_size = world // degrees.model_parallel
        stage, inside = divmod(rank, world // degrees.pipeline)
        data_rank, sharer = divmod(inside, together)
        sequence_rank, tensor_rank = divmod(sharer, degrees.tensor)
        return Topology(
            world,
            rank,
            data_size,
            data_rank,
            degrees.tensor,
            tensor_rank,
            degrees.pipeline,
            stage,
            degrees.sequence,
            sequence_rank,
        )

    @property
    def copies(self) -> int:
        """Ranks that compute the same micro-batch, each its part of it."""
        return self.tensor_size * self.pipeline_size * self.sequence_size
