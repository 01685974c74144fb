# SPDX-License-Identifier: Apache-2.0
"""Steps and evaluation under sequence parallelism: each rank computes its part of every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from harness.patches.chunked_loss import ChunkedHead
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch, copy_to_device
from harness.runtime.models.packed_attention import PackedAttention
from harness.runtime.parallel.sequence_parallel import UlyssesAttention, is_packed, split_sequence
from harness.runtime.step_timer import StepTimer
from harness.runtime.topology import Topology
from harness.runtime.user_errors import user_error


class SequenceParallelStepper:
    """A model whose rows are split over a sequence group by the `attention` that was installed in it.

    `head` computes the loss in chunks, and `eval_head` that of an evaluation. `packed_attention`, on each rank's share
    of the heads, takes the borders of packed documents in whole rows.
    """

    def __init__(
        self,
        engine: Engine,
        distributed: Distributed,
        topology: Topology,
        attention: UlyssesAttention,
        head: ChunkedHead | None = None,
        eval_head: ChunkedHead | None = None,
        packed_attention: PackedAttention | None = None,
    ) -> None:
        self._engine, self._device, self._topology = engine, distributed.device, topology
        self._attention, self._head, self._eval_head = attention, head, eval_head
        self._packed_attention = packed_attention
        # DeepSpeed sums gradients over a sequence group, but averages them at stage 3 and with AutoTP.
        averages = engine.zero_optimization_stage() == 3 or topology.tensor_parallel_size > 1
        self._gradient_factor = topology.sequence_parallel_size if averages else 1
        self._counts_loss = topology.tensor_parallel_rank == 0  # a tensor group has one loss
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
        return losses / self._topology.tensor_parallel_size

    def eval_step(self, batch: MicroBatch) -> tuple[torch.Tensor, int]:
        """This rank's part of the rows."""
        loss_sum, predicted = self._compute_loss(batch, 1.0, self._eval_head)
        loss_sum = loss_sum.detach().double()
        return (loss_sum, predicted) if self._counts_loss else (torch.zeros_like(loss_sum), 0)

    def _compute_loss(self, batch: MicroBatch, num_items: float, head: ChunkedHead | None) -> tuple[torch.Tensor, int]:
        """Sum of this part's token losses over `num_items`, in fp32, and their number (0 is possible)."""
        parts = split_sequence(batch, self._topology.sequence_parallel_size, self._topology.sequence_parallel_rank)
        ids, positions, labels = (copy_to_device(part, self._device) for part in parts)
        self._attention.start_forward(positions, packed=is_packed(batch))
        if self._packed_attention is not None:
            length, size = batch.input_ids.shape[1], self._topology.sequence_parallel_size
            self._packed_attention.start_forward(batch, self._device, extra=-length % size)
        if head is not None:
            head.set_shifted_labels(labels, num_items)
        predicted = int((parts[2] != IGNORE_INDEX).sum())
        inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        if head is None and self._topology.tensor_parallel_size > 1:  # the logits may be those of a part of the words
            inputs |= {"labels": labels, "shift_labels": labels, "num_items_in_batch": num_items}
            loss: torch.Tensor = self._engine(**inputs).loss
            self._check_layers()
            return loss, predicted
        logits = self._engine(**inputs).logits
        self._check_layers()
        if head is not None:
            return logits, predicted
        flat = logits.float().flatten(0, 1)
        return cross_entropy(flat, labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum") / num_items, predicted

    def _check_layers(self) -> None:
        """Refuse layers that mix positions by other means (convolutions, recurrences): they would see a part only."""
        model = cast("PreTrainedModel", self._engine.module)  # as `install_ulysses_attention` has seen
        layers = model.config.get_text_config().num_hidden_layers
        if not self._layers_are_known and self._attention.num_calls != layers:
            raise user_error(
                "SQ101",
                f"{self._attention.num_calls} of the model's {layers} layers attend over a sequence group; the "
                f"others would see only a part of each row",
                key="parallel.sequence_parallel_size",
                fix="set `parallel.sequence_parallel_size: 1`",
            )
        self._layers_are_known = True
