"""One optimizer step and one evaluation batch on an engine: what differs between engines is here, not in the loop.

The loss is weighted by tokens: every predicted token of the global batch counts the same, however they are spread over
ranks and micro-batches.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from harness.plan.run import Run
from harness.plan.settings import loss_chunk
from harness.runtime.batch import MicroBatch
from harness.runtime.chunked_loss import ChunkedHead, chunk_head
from harness.runtime.metrics import Stopwatch
from harness.runtime.pipeline.stepper import PipelineStepper
from harness.runtime.ranks import Ranks
from harness.runtime.sequence_parallel import SequenceStepper
from harness.runtime.topology import Topology


class Stepper(Protocol):
    """How this rank takes part in a step."""

    def train(self, micro_batches: Sequence[MicroBatch], predicted: int, watch: Stopwatch) -> torch.Tensor:
        """One optimizer step on this data rank's micro-batches, of a global batch with so many predicted tokens.

        Returns a float64 scalar on the device: summed over all ranks and divided by accumulation x data-parallel ranks
        it is the mean loss of all predicted tokens, before the update.
        """

    def evaluate(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """This rank's part of (sum of token losses, predicted tokens): summed over all ranks each token counts once."""


class PlainStepper:
    """A model that sees whole rows on every rank, cut by ZeRO or AutoTP. `head` computes the loss in chunks."""

    chunked_evaluation = True
    """False while somebody wants the logits of an evaluation."""

    def __init__(self, engine: Any, ranks: Ranks, topology: Topology, head: ChunkedHead | None = None) -> None:
        self._engine, self._device, self._data_size, self._head = engine, ranks.device, topology.data_size, head
        self._copies, self._counts = topology.tensor_size, topology.tensor_rank == 0  # a tensor group has one loss
        self._weighs = takes_num_items(engine.module)

    def train(self, micro_batches: Sequence[MicroBatch], predicted: int, watch: Stopwatch) -> torch.Tensor:
        """Forward and backward for each micro-batch; the engine steps after the last."""
        engine, share = self._engine, predicted / (len(micro_batches) * self._data_size)
        losses = torch.zeros((), dtype=torch.float64, device=self._device)
        for batch in micro_batches:
            with watch.part("forward"):
                loss = self._loss(batch, share)
                losses += loss.detach()
            with watch.part("backward"):
                engine.backward(loss)
            with watch.part("optimizer"):
                engine.step()
        return losses / self._copies

    def _loss(self, batch: MicroBatch, share: float) -> torch.Tensor:
        """Sum of the token losses over `share`, the mean number of predicted tokens of a micro-batch."""
        inputs, labels = batch.inputs(self._device), batch.labels.to(self._device, non_blocking=True)
        if self._head is not None:
            self._head.arm(labels, share)
            return self._engine(**inputs, labels=labels, use_cache=False).loss
        if self._weighs:
            return self._engine(**inputs, labels=labels, use_cache=False, num_items_in_batch=share).loss
        return self._engine(**inputs, labels=labels, use_cache=False).loss * (batch.predicted / share)

    def evaluate(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """A forward; a batch that predicts nothing is computed for the other ranks' sake (ZeRO-3 gathers in it)."""
        predicted = batch.predicted
        inputs, labels = batch.inputs(self._device), batch.labels.to(self._device)
        if self._head is not None and self.chunked_evaluation:
            self._head.arm(labels, None)
        loss = self._engine(**inputs, labels=labels, use_cache=False).loss.detach().double()
        if not predicted or not self._counts:
            return torch.zeros_like(loss), 0
        return loss * predicted, predicted


def takes_num_items(model: Any) -> bool:
    """True when the model's forward hands `num_items_in_batch` on to its loss, as `transformers` models do."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(p.kind is p.VAR_KEYWORD or p.name == "num_items_in_batch" for p in parameters)


def make_stepper(engine: Any, ranks: Ranks, topology: Topology, run: Run | None = None) -> Stepper:
    """The one that goes with the engine. `run` says how large the chunks of the loss are; without it there are none."""
    if topology.pipeline_size > 1:
        return PipelineStepper(engine, ranks, topology)
    chunk = loss_chunk(run) if run is not None else 0
    head = chunk_head(engine, chunk) if chunk else None
    if isinstance(head, str) and ranks.is_first:
        print(f"loss: computed at once, not in chunks of {chunk} tokens: {head}", file=sys.stderr, flush=True)  # noqa: T201
    kind = SequenceStepper if topology.sequence_size > 1 else PlainStepper
    stepper = kind(engine, ranks, topology, None if isinstance(head, str) else head)
    stepper.chunked_evaluation = run is None or run.spec.plugins.file is None
    return stepper
