"""Steps and evaluation of a pipeline: the engine draws the micro-batches itself and steps when all are through.

All stages of a pipeline draw the same micro-batches, so that each knows how many there are and of which shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.batch import MicroBatch
from harness.runtime.metrics import Stopwatch
from harness.runtime.pipeline.layers import positions_of
from harness.runtime.ranks import Ranks
from harness.runtime.topology import Topology

_Entry = tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class PipelineStepper:
    """An engine around `pipeline.module.Pipeline`."""

    def __init__(self, engine: Any, ranks: Ranks, topology: Topology) -> None:
        self._engine, self._device, self._data_size = engine, ranks.device, topology.data_size
        self._shape: torch.Size | None = None

    def train(self, micro_batches: Sequence[MicroBatch], predicted: int, watch: Stopwatch) -> torch.Tensor:
        """One optimizer step; see `stepping.Stepper`. Ranks that are not of the last stage return 0."""
        share = predicted / (len(micro_batches) * self._data_size)
        self._fit(micro_batches)
        with watch.part("pipeline"):
            self._engine.train_batch(iter([_entry(batch, share) for batch in micro_batches]))
        return self._loss()

    def evaluate(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """One forward through the stages; the last one counts."""
        predicted = batch.predicted
        self._fit([batch])
        self._engine.eval_batch(iter([_entry(batch, max(predicted, 1))]), bcast_loss=False, num_micro_batches=1)
        loss = self._loss() * predicted
        return loss, predicted if self._engine.is_last_stage() else 0

    def _loss(self) -> torch.Tensor:
        taken: torch.Tensor = self._engine.module.loss_fn.take(self._device)
        return taken

    def _fit(self, micro_batches: Sequence[MicroBatch]) -> None:
        """The engine keeps the buffers of the first shape that it has seen, and would fill them with other shapes."""
        shapes = {batch.input_ids.shape for batch in micro_batches}
        self._engine.dynamic_shape = len(shapes) > 1
        shape = shapes.pop()
        if shapes or shape != self._shape:
            self._engine.reset_activation_shape()
        self._shape = None if shapes else shape


def _entry(batch: MicroBatch, share: float) -> _Entry:
    """What the first stage takes, and what the last one takes. float32 as torch divides a float32 loss."""
    return (batch.input_ids, positions_of(batch)), (batch.labels, torch.tensor(share, dtype=torch.float32))
