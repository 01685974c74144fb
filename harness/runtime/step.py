# SPDX-License-Identifier: Apache-2.0
"""One optimizer step and one evaluation batch on an engine: engines differ here, not in the loop.

The loss is weighted by tokens: every predicted token of the global batch counts the same, however they are spread over
ranks and micro-batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Protocol, cast

import torch

from harness.patches.chunked_loss import ChunkedHead
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine, PipelineEngine
from harness.runtime.micro_batch import BatchGeometry, MicroBatch, copy_to_device
from harness.runtime.models.packed_attention import PackedAttention
from harness.runtime.parallel.sequence_parallel import UlyssesAttention
from harness.runtime.parallel.sequence_stepper import SequenceParallelStepper
from harness.runtime.pipeline.pipeline_stepper import PipelineStepper
from harness.runtime.step_timer import StepTimer
from harness.runtime.topology import Topology


class Stepper(Protocol):
    """This rank's part of a step."""

    def train_step(self, micro_batches: Sequence[MicroBatch], num_targets: int, timer: StepTimer) -> torch.Tensor:
        """One optimizer step on this data rank's micro-batches, of a global batch with so many predicted tokens.

        Returns a float64 scalar on the device: summed over all ranks and divided by accumulation x data-parallel ranks
        it is the mean loss of all predicted tokens, before the update.
        """

    def eval_step(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """This rank's part of (sum of token losses, predicted tokens): summed over all ranks each token counts once."""


class DataParallelStepper:
    """A model that sees whole rows on every rank, sharded by ZeRO or AutoTP.

    `head` computes the loss in chunks; `eval_needs_logits`: not in an evaluation. `packed_attention` takes the borders
    of packed documents.
    """

    def __init__(
        self,
        engine: Engine,
        distributed: Distributed,
        topology: Topology,
        head: ChunkedHead | None = None,
        packed_attention: PackedAttention | None = None,
        *,
        eval_needs_logits: bool = False,
    ) -> None:
        self._engine, self._device, self._data_size = engine, distributed.device, topology.data_parallel_size
        self._head, self._eval_head = head, None if eval_needs_logits else head
        self._packed_attention = packed_attention
        # A tensor group has one loss.
        self._tensor_parallel_size = topology.tensor_parallel_size
        self._counts_loss = topology.tensor_parallel_rank == 0
        self._accepts_num_items = accepts_num_items(engine.module)

    def train_step(self, micro_batches: Sequence[MicroBatch], num_targets: int, timer: StepTimer) -> torch.Tensor:
        """Forward and backward for each micro-batch; the engine steps after the last."""
        engine, share = self._engine, num_targets / (len(micro_batches) * self._data_size)
        losses = torch.zeros((), dtype=torch.float64, device=self._device)
        for batch in micro_batches:
            with timer.span("forward"):
                loss = self._compute_loss(batch, share)
                losses += loss.detach()
            with timer.span("backward"):
                engine.backward(loss)
            with timer.span("optimizer"):
                engine.step()
        return losses / self._tensor_parallel_size

    def _compute_loss(self, batch: MicroBatch, share: float) -> torch.Tensor:
        """Sum of the token losses over `share`, the mean number of predicted tokens of a micro-batch."""
        if self._head is not None:
            return self._forward(batch, self._head, share)
        if self._accepts_num_items:
            return self._forward(batch, None, num_items_in_batch=share)
        return self._forward(batch, None) * (batch.num_targets / share)

    def _forward(
        self, batch: MicroBatch, head: ChunkedHead | None, share: float | None = None, **arguments: float
    ) -> torch.Tensor:
        """The model's loss. `head` computes it in chunks, over `share` or as the mean."""
        inputs, labels = batch.to_model_inputs(self._device), copy_to_device(batch.labels, self._device)
        if head is not None:
            head.set_labels(labels, share)
        if self._packed_attention is not None:
            self._packed_attention.start_forward(batch, self._device)
        loss: torch.Tensor = self._engine(**inputs, labels=labels, use_cache=False, **arguments).loss
        if self._packed_attention is not None:
            self._packed_attention.check_layers()
        return loss

    def eval_step(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """A forward; a batch without targets is computed too, since other ranks gather in it (ZeRO-3)."""
        predicted = batch.num_targets
        loss = self._forward(batch, self._eval_head).detach().double()
        if not predicted or not self._counts_loss:
            return torch.zeros_like(loss), 0
        return loss * predicted, predicted


def accepts_num_items(model: torch.nn.Module) -> bool:
    """True when the model's forward hands `num_items_in_batch` on to its loss, as `transformers` models do."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(p.kind is p.VAR_KEYWORD or p.name == "num_items_in_batch" for p in parameters)


def make_stepper(
    engine: Engine,
    distributed: Distributed,
    topology: Topology,
    head: ChunkedHead | None = None,
    attention: UlyssesAttention | None = None,
    packed_attention: PackedAttention | None = None,
    *,
    eval_needs_logits: bool = False,
) -> Stepper:
    """The stepper of this engine. `head`, `attention` and `packed_attention` are what was installed in its model: a
    loss in chunks, attention over a sequence group, without which there is no sequence parallelism, and attention that
    takes the borders of packed documents. Changes nothing.
    """
    if topology.pipeline_parallel_size > 1:
        return PipelineStepper(cast("PipelineEngine", engine), distributed, topology)
    if attention is not None:
        return SequenceParallelStepper(
            engine, distributed, topology, attention, head, packed_attention, eval_needs_logits=eval_needs_logits
        )
    return DataParallelStepper(
        engine, distributed, topology, head, packed_attention, eval_needs_logits=eval_needs_logits
    )


class MeanLoss:
    """The mean loss of all predicted tokens of a step. Its sum over the ranks starts here; nothing waits for it."""

    def __init__(self, losses: torch.Tensor, distributed: Distributed, geometry: BatchGeometry) -> None:
        self._read_sum = distributed.all_reduce_sum_async(losses)
        self._divisor = geometry.accumulation_steps * geometry.data_parallel_size

    def read(self) -> float:
        """The loss in nats, the same on every rank. Waits until the device has passed the step."""
        return self._read_sum()[0] / self._divisor
