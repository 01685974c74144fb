# SPDX-License-Identifier: Apache-2.0
"""Steps and evaluation under sequence parallelism: each rank computes its part of every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from harness.runtime.chunked_loss import ChunkedHead
from harness.runtime.distributed import Distributed
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch
from harness.runtime.parallel.sequence_parallel import install_ulysses_attention, split_sequence
from harness.runtime.step_timer import StepTimer
from harness.runtime.topology import Topology
from harness.runtime.user_errors import user_error


class SequenceParallelStepper:
    """A model whose rows are split over a sequence group. `head` computes the loss in chunks."""

    use_chunked_eval_loss = True
    """False where an evaluation needs logits."""

    def __init__(
        self, engine: Any, distributed: Distributed, topology: Topology, head: ChunkedHead | None = None
    ) -> None:
        self._engine, self._device, self._topology, self._head = engine, distributed.device, topology, head
        self._attention = install_ulysses_attention(engine.module, engine.get_sequence_parallel_group())
        # DeepSpeed adds gradients up over a sequence group, but at stage 3 averages them.
        self._gradient_factor = topology.sequence_parallel_size if engine.zero_optimization_stage() == 3 else 1
        self._layers_are_known = False

    def train_step(self, micro_batches: Sequence[MicroBatch], num_targets: int, timer: StepTimer) -> torch.Tensor:
        """Forward and backward of this rank's part of each micro-batch; the engine steps after the last."""
        engine, share = self._engine, num_targets / (len(micro_batches) * self._topology.data_parallel_size)
        losses = torch.zeros((), dtype=torch.float64, device=self._device)
        for batch in micro_batches:
            with timer.span("forward"):
                loss, _ = self._compute_loss(batch, share, self._head)
                losses += loss.detach().double()
            with timer.span("backward"):
                engine.backward(loss * self._gradient_factor)
            with timer.span("optimizer"):
                engine.step()
        return losses

    def eval_step(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """This rank's part of the rows."""
        loss_sum, predicted = self._compute_loss(batch, 1.0, self._head if self.use_chunked_eval_loss else None)
        return loss_sum.detach().double(), predicted

    def _compute_loss(self, batch: MicroBatch, num_items: float, head: ChunkedHead | None) -> tuple[torch.Tensor, int]:
        """Sum of this part's token losses over `num_items`, in fp32, and their number (0 is possible)."""
        parts = split_sequence(batch, self._topology.sequence_parallel_size, self._topology.sequence_parallel_rank)
        ids, positions, labels = (t.to(self._device, non_blocking=True) for t in parts)
        self._attention.start_forward(positions)
        if head is not None:
            head.set_shifted_labels(labels, num_items)
        logits = self._engine(input_ids=ids, position_ids=positions, use_cache=False).logits
        self._check_layers()
        predicted = int((parts[2] != IGNORE_INDEX).sum())
        if head is not None:
            return logits, predicted
        flat = logits.float().flatten(0, 1)
        return cross_entropy(flat, labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum") / num_items, predicted

    def _check_layers(self) -> None:
        """Refuse layers that mix positions by other means (convolutions, recurrences): they would see a part only."""
        layers = self._engine.module.config.get_text_config().num_hidden_layers
        if not self._layers_are_known and self._attention.num_calls != layers:
            raise user_error(
                "SQ101",
                f"{self._attention.num_calls} of the model's {layers} layers attend over a sequence group, "
                "the others would see a part of each row",
                key="parallel.sequence_parallel_size",
                fix="set `parallel.sequence_parallel_size: 1`",
            )
        self._layers_are_known = True
