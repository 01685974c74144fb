# SPDX-License-Identifier: Apache-2.0
"""One optimizer step and one evaluation batch on an engine: engines differ here, not in the loop.

The loss is weighted by units (`objectives/objective.py`), such as predicted tokens: every unit of the global batch
counts the same, however they are spread over ranks and micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.micro_batch import BatchGeometry
from harness.runtime.objective_metrics import ObjectiveMetrics
from harness.runtime.step_timer import StepTimer
from harness.runtime.topology import Topology


class Stepper(Protocol):
    """This rank's part of a step."""

    def train_step(self, micro_batches: Sequence[Any], num_targets: int, timer: StepTimer) -> torch.Tensor:
        """One optimizer step on this data rank's micro-batches, of a global batch with so many units.

        Returns a float64 scalar on the device: summed over all ranks and divided by accumulation x data-parallel ranks
        it is the mean loss of all units, before the update.
        """

    def eval_step(self, batch: Any) -> tuple[torch.Tensor, float]:
        """This rank's part of (sum of losses, units): summed over all ranks each unit counts once."""


class MicroBatchLoss(Protocol):
    """The two losses of an objective and its metrics, as `objectives/objective.py` describes them."""

    metrics: ObjectiveMetrics

    def count_units(self, micro_batches: Sequence[Any], num_targets: int) -> float:
        """The units of the global batch."""

    def loss(self, engine: Engine, batch: Any, share: float) -> torch.Tensor:
        """Sum of the losses over `share`, the mean number of units of a micro-batch."""

    def eval_loss(self, engine: Engine, batch: Any) -> tuple[torch.Tensor, float]:
        """(sum of the losses, units)."""


class DataParallelStepper:
    """A model that sees whole rows on every rank, sharded by ZeRO or AutoTP."""

    def __init__(
        self, engine: Engine, distributed: Distributed, topology: Topology, micro_batch_loss: MicroBatchLoss
    ) -> None:
        self._engine, self._device, self._data_size = engine, distributed.device, topology.data_parallel_size
        self._micro_batch_loss = micro_batch_loss
        # A tensor group has one loss.
        self._tensor_parallel_size = topology.tensor_parallel_size
        self._counts_loss = topology.tensor_parallel_rank == 0

    def train_step(self, micro_batches: Sequence[Any], num_targets: int, timer: StepTimer) -> torch.Tensor:
        """Forward and backward for each micro-batch; the engine steps after the last."""
        engine, units = self._engine, self._micro_batch_loss.count_units(micro_batches, num_targets)
        share = units / (len(micro_batches) * self._data_size)
        losses = torch.zeros((), dtype=torch.float64, device=self._device)
        self._micro_batch_loss.metrics.reset()
        for batch in micro_batches:
            with timer.span("forward"):
                loss = self._micro_batch_loss.loss(engine, batch, share)
                losses += loss.detach()
            with timer.span("backward"):
                engine.backward(loss)
            with timer.span("optimizer"):
                engine.step()
        return losses / self._tensor_parallel_size

    def eval_step(self, batch: Any) -> tuple[torch.Tensor, float]:
        """A forward; a batch without units is computed too, since other ranks gather in it (ZeRO-3)."""
        loss_sum, units = self._micro_batch_loss.eval_loss(self._engine, batch)
        return (loss_sum, units) if self._counts_loss else (torch.zeros_like(loss_sum), 0)


class MeanLoss:
    """The mean loss of all units of a step. Its sum over the ranks starts here; nothing waits for it."""

    def __init__(self, losses: torch.Tensor, distributed: Distributed, geometry: BatchGeometry) -> None:
        self._read_sum = distributed.all_reduce_sum_async(losses)
        self._divisor = geometry.accumulation_steps * geometry.data_parallel_size

    def read(self) -> float:
        """The loss in nats, the same on every rank. Waits until the device has passed the step."""
        return self._read_sum()[0] / self._divisor
