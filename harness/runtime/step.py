# SPDX-License-Identifier: Apache-2.0
"""One optimizer step and one evaluation batch on an engine: engines differ here, not in the loop.

The loss is weighted by tokens: every predicted token of the global batch counts the same, however they are spread over
ranks and micro-batches.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from harness.plan.plan_settings import loss_chunk_size_of
from harness.plan.resolved_run import ResolvedRun
from harness.runtime.chunked_loss import ChunkedHead, install_chunked_loss
from harness.runtime.distributed import Distributed
from harness.runtime.micro_batch import MicroBatch
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
    """A model that sees whole rows on every rank, sharded by ZeRO or AutoTP. `head` computes the loss in chunks."""

    use_chunked_eval_loss = True
    """False where an evaluation needs logits."""

    def __init__(
        self, engine: Any, distributed: Distributed, topology: Topology, head: ChunkedHead | None = None
    ) -> None:
        self._engine, self._device, self._data_size, self._head = (
            engine,
            distributed.device,
            topology.data_parallel_size,
            head,
        )
        self._tensor_parallel_size, self._counts_loss = (
            topology.tensor_parallel_size,
            topology.tensor_parallel_rank == 0,
        )  # a tensor group has one loss
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
        inputs, labels = batch.to_model_inputs(self._device), batch.labels.to(self._device, non_blocking=True)
        if self._head is not None:
            self._head.set_labels(labels, share)
            return self._engine(**inputs, labels=labels, use_cache=False).loss
        if self._accepts_num_items:
            return self._engine(**inputs, labels=labels, use_cache=False, num_items_in_batch=share).loss
        return self._engine(**inputs, labels=labels, use_cache=False).loss * (batch.num_targets / share)

    def eval_step(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """A forward; a batch without targets is computed too, since other ranks gather in it (ZeRO-3)."""
        predicted = batch.num_targets
        inputs, labels = batch.to_model_inputs(self._device), batch.labels.to(self._device)
        if self._head is not None and self.use_chunked_eval_loss:
            self._head.set_labels(labels, None)
        loss = self._engine(**inputs, labels=labels, use_cache=False).loss.detach().double()
        if not predicted or not self._counts_loss:
            return torch.zeros_like(loss), 0
        return loss * predicted, predicted


def accepts_num_items(model: Any) -> bool:
    """True when the model's forward hands `num_items_in_batch` on to its loss, as `transformers` models do."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(p.kind is p.VAR_KEYWORD or p.name == "num_items_in_batch" for p in parameters)


def make_stepper(engine: Any, distributed: Distributed, topology: Topology, run: ResolvedRun | None = None) -> Stepper:
    """The stepper of this engine. `run` has the chunk size of the loss; without it the loss is not in chunks."""
    if topology.pipeline_parallel_size > 1:
        return PipelineStepper(engine, distributed, topology)
    chunk = loss_chunk_size_of(run) if run is not None else 0
    head = install_chunked_loss(engine, chunk) if chunk else None
    if isinstance(head, str) and distributed.is_main_process:
        print(f"loss: computed at once, not in chunks of {chunk} tokens: {head}", file=sys.stderr, flush=True)  # noqa: T201
    kind = SequenceParallelStepper if topology.sequence_parallel_size > 1 else DataParallelStepper
    stepper = kind(engine, distributed, topology, None if isinstance(head, str) else head)
    stepper.use_chunked_eval_loss = run is None or run.spec.plugins.file is None
    return stepper
