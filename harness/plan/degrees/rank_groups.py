# SPDX-License-Identifier: Apache-2.0
"""Degrees of tensor, pipeline, context, expert and data parallelism: their groups, and where these lie on hosts.

The order of ranks is Megatron's: tensor innermost, then context, data, pipeline (core/parallel_state.py, `order`
"tp-cp-ep-dp-pp"). Experts are divided over the tensor, context and data ranks of a stage, and not by tensor parallelism
as well (`expert_tensor_parallel_size` 1). With an expert degree of 1 they are, like every other matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.plan.degrees.gpu_work import GroupKind
from harness.plan.time.pipeline_schedule import Schedule


@dataclass(frozen=True, slots=True)
class ParallelDegrees:
    """The degrees of a run on `world_size` GPUs. `sequence`: the tensor group divides the sequence where it does not
    divide matrices (Megatron's sequence parallelism, arXiv 2205.05198).
    """

    world_size: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    virtual_stages: int = 1
    schedule: Schedule = "1f1b"
    sequence: bool = True
    gpus_per_host: int = 8

    @property
    def replica(self) -> int:
        """GPUs that hold the parameters once, and a batch's sequences once."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Data-parallel degree: what is left of the world."""
        return self.world_size // self.replica

    @property
    def data_group(self) -> int:
        """Ranks that sum a gradient: data and context."""
        return self.data * self.context

    @property
    def expert_data_group(self) -> int:
        """Ranks that hold the same experts."""
        return self.world_size // self.pipeline // self.expert if self.expert > 1 else self.data_group

    @property
    def stage_ranks(self) -> int:
        """GPUs of one pipeline stage."""
        return self.world_size // self.pipeline

    @property
    def sequence_share(self) -> int:
        """Ranks that divide what tensor parallelism leaves whole."""
        return self.tensor if self.sequence else 1

    def group(self, kind: GroupKind) -> tuple[int, int]:
        """(ranks, those of them in one host) of a kind of group."""
        size, stride = {
            "tensor": (self.tensor, 1),
            "context": (self.context, self.tensor),
            "expert": (self.expert, 1),
            "data": (self.data_group, self.tensor),
            "expert data": (self.expert_data_group, self.expert if self.expert > 1 else self.tensor),
            "pipeline": (self.pipeline, self.stage_ranks),
        }[kind]
        return size, min(size, max(1, min(self.gpus_per_host, self.world_size) // stride))

    def __str__(self) -> str:
        return f"{self.data} data x {self.tensor} tensor x {self.pipeline} pipeline x {self.context} context"


@dataclass(frozen=True, slots=True)
class StageLayers:
    """The share of one pipeline rank: layers by their index, by chunk; the embedding; the head with the loss."""

    stage: int
    chunks: tuple[range, ...]
    has_embedding: bool
    has_head: bool

    @property
    def layers(self) -> tuple[int, ...]:
        """All its layers."""
        return tuple(index for chunk in self.chunks for index in chunk)


def assign_layers(num_layers: int, degrees: ParallelDegrees) -> tuple[StageLayers, ...]:
    """The layers of every stage.

    Equal numbers where the chunks divide the layers. Otherwise the embedding and the head count as a layer each, as for
    Llama 3 405B (126 layers in 128 places: arXiv 2407.21783, section 3.3.2), and where that leaves a remainder the
    first chunks have one layer more.
    """
    places = degrees.pipeline * degrees.virtual_stages
    if num_layers % places == 0:
        counts = [num_layers // places] * places
    else:
        base, more = divmod(num_layers + 2, places)
        counts = [base + (index < more) for index in range(places)]
        counts[0] -= 1
        counts[-1] -= 1
    starts = [sum(counts[:index]) for index in range(places)]
    ranges = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
    stages = degrees.pipeline
    if degrees.schedule == "dualpipe" and stages > 1:  # every rank has a stage of each direction
        return tuple(
            StageLayers(
                stage, (ranges[stage], ranges[stages - 1 - stage]), stage in (0, stages - 1), stage in (0, stages - 1)
            )
            for stage in range(stages)
        )
    return tuple(
        StageLayers(stage, tuple(ranges[stage::stages]), stage == 0, stage == stages - 1) for stage in range(stages)
    )
