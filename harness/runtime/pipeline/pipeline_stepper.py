# SPDX-License-Identifier: Apache-2.0
"""Steps and evaluation of a pipeline: the engine takes the micro-batches itself and steps after the last.

All stages of a pipeline take the same micro-batches, so that each knows their number and shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import PipelineEngine
from harness.runtime.micro_batch import MicroBatch
from harness.runtime.pipeline.layers import SharedInputs, encode_positions
from harness.runtime.pipeline.vocabulary_parallel import vocabulary_parallel_loss
from harness.runtime.step_timer import StepTimer
from harness.runtime.topology import Topology

_PipelineInputs = tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class PipelineStepper:
    """The stepper of an engine around `pipeline_module.Pipeline`."""

    def __init__(self, engine: PipelineEngine, distributed: Distributed, topology: Topology) -> None:
        self._engine, self._device, self._data_size = engine, distributed.device, topology.data_parallel_size
        self._counts_loss = topology.tensor_parallel_rank == 0  # a tensor group has one loss
        self._activation_shape: torch.Size | None = None

    def train_step(self, micro_batches: Sequence[MicroBatch], num_targets: int, timer: StepTimer) -> torch.Tensor:
        """One optimizer step; see `step.Stepper`. One tensor rank of the last stage has a loss, others return 0."""
        share = num_targets / (len(micro_batches) * self._data_size)
        self._prepare_stages(micro_batches)
        with timer.span("pipeline"):
            self._engine.train_batch(iter([_pipeline_inputs(batch, share) for batch in micro_batches]))
        return self._pop_loss()

    def eval_step(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """One forward through the stages; the last one counts."""
        predicted = batch.num_targets
        self._prepare_stages([batch])
        self._engine.eval_batch(
            iter([_pipeline_inputs(batch, max(predicted, 1))]), bcast_loss=False, num_micro_batches=1
        )
        loss = self._pop_loss() * predicted
        return loss, predicted if self._engine.is_last_stage() and self._counts_loss else 0

    def _pop_loss(self) -> torch.Tensor:
        loss = cast("TokenLoss", self._engine.module.loss_fn).pop_loss(self._device)
        return loss if self._counts_loss else torch.zeros_like(loss)

    def _prepare_stages(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Tell the layers if rows are padded or packed. The engine keeps the buffers of its first shape, and would fill
        them with other shapes.
        """
        cast("SharedInputs", self._engine.module.shared_inputs).start_step(micro_batches)
        shapes = {batch.input_ids.shape for batch in micro_batches}
        self._engine.dynamic_shape = len(shapes) > 1
        shape = shapes.pop()
        if shapes or shape != self._activation_shape:
            self._engine.reset_activation_shape()
        self._activation_shape = None if shapes else shape


def _pipeline_inputs(batch: MicroBatch, share: float) -> _PipelineInputs:
    """The inputs of the first stage, and of the last. float32, since torch divides a float32 loss."""
    return (batch.input_ids, encode_positions(batch)), (batch.labels, torch.tensor(share, dtype=torch.float32))


class TokenLoss:
    """Called by the engine for each micro-batch of the last stage; keeps the sum until `pop_loss`.

    `tensor_group` is set where each of its ranks has the logits of a part of the vocabulary.
    """

    tensor_group: Any = None

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sum: torch.Tensor | None = None
        self.__name__ = "token-weighted cross entropy"  # DeepSpeed prints it

    def __call__(self, logits: torch.Tensor, labels: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Sum of the token losses over `share`: `labels` is (labels (rows, length), share (a scalar))."""
        targets, share = labels
        if self.tensor_group is not None:
            loss = vocabulary_parallel_loss(logits, targets, share, self.tensor_group)
        else:
            loss = ForCausalLMLoss(logits, targets, self._vocab_size, num_items_in_batch=share)
        value = loss.detach().double()
        self._sum = value if self._sum is None else self._sum + value
        return loss

    def pop_loss(self, device: torch.device) -> torch.Tensor:
        """The sum since the last call, a float64 scalar; 0 on a rank that computes no loss."""
        total, self._sum = self._sum, None
        return torch.zeros((), dtype=torch.float64, device=device) if total is None else total
