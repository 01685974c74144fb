# SPDX-License-Identifier: Apache-2.0
"""`train.on_nonfinite`: a run's answer to a NaN or an infinity in a gradient, whose step DeepSpeed skips, or in a loss
whose step was taken.

DeepSpeed skips such steps on all ranks alike wherever it keeps masters or shards; at ZeRO stage 0 in fp32 the patch
`stage0_nonfinite_guard` does. The batch at fault is found here, afterwards: ranks look at their losses only once a step
was skipped, so that a healthy run waits for nothing. The mean loss of a step is read where it is logged, a step late on
a device, and at once before a save, an evaluation or a stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from harness.errors import UserError, user_error
from harness.runtime.distributed import AgreedUserError
from harness.runtime.engine_protocol import LossScaledOptimizer
from harness.runtime.step import MeanLoss
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import DataPosition, TrainState


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that changed nothing: a line for the display, and the error that ends the run, if it does."""

    nonfinite_ranks: tuple[int, ...]
    """Ranks with a nonfinite loss; none where a gradient alone was nonfinite."""
    message: str
    error: UserError | None


class NonfinitePolicy:
    """`train.on_nonfinite` for one run. All ranks call the same methods at the same steps.

    `reads_late`: a loss is read a step after its own, when the device has passed it.
    """

    def __init__(self, ctx: TrainContext, *, reads_late: bool) -> None:
        self._spec, self._engine, self._distributed = ctx.run_config.run.spec, ctx.engine, ctx.distributed
        self._topology, self._geometry, self._reads_late = ctx.topology, ctx.train_data.geometry, reads_late
        self._total_steps = ctx.total_steps
        self._engine_skipped_steps = int(ctx.engine.skipped_steps)
        self._is_taken = True
        self._unread_loss: tuple[int, MeanLoss] | None = None

    def check_step(
        self, state: TrainState, position: DataPosition, losses: torch.Tensor
    ) -> tuple[TrainState, SkippedStep | None]:
        """Called by every rank after the step to `state`, of data at `position`, with this rank's loss."""
        skipped = int(self._engine.skipped_steps) != self._engine_skipped_steps
        if self._topology.model_parallel_size > 1:  # stages and shards may hold different gradients
            skipped = self._distributed.any_rank(skipped)
        self._engine_skipped_steps, self._is_taken = int(self._engine.skipped_steps), not skipped
        if not skipped:
            return (replace(state, skipped_in_a_row=0) if state.skipped_in_a_row else state), None
        finite = self._distributed.all_gather_object(bool(torch.isfinite(losses)))
        nonfinite_ranks = tuple(rank for rank, fine in enumerate(finite) if not fine)
        if not nonfinite_ranks and self._is_searching_loss_scale():
            return state, None
        state = replace(state, skipped=state.skipped + 1, skipped_in_a_row=state.skipped_in_a_row + 1)
        return state, self._apply_policy(state, position, nonfinite_ranks)

    def check_loss(self, step: int, loss: MeanLoss | None, *, at_once: bool) -> None:
        """Called after every step; `loss` is None for a step that was skipped, or whose loss nobody needs. `at_once`:
        read it now, and the gradient norm, before the weights are saved or evaluated. Raises AgreedUserError (OP113) on
        all ranks for one that is not finite though its step was taken.
        """
        self._check_unread_loss()
        self._unread_loss = None if loss is None else (step, loss)
        if at_once or not self._reads_late:
            self._check_unread_loss()
        if at_once and loss is not None and self._is_taken:
            self._check_gradient_norm(step)

    def _check_unread_loss(self) -> None:
        if self._unread_loss is None:
            return
        (step, mean_loss), self._unread_loss = self._unread_loss, None
        loss = mean_loss.read()
        if not math.isfinite(loss):
            raise self._taken_step_error(f"the loss of step {step} is {loss}")

    def _check_gradient_norm(self, step: int) -> None:
        """A loss is of the weights before the step: only the gradient tells that the step itself made them NaN."""
        norm = self._engine.get_global_grad_norm()
        if self._distributed.any_rank(norm is not None and not math.isfinite(norm)):
            raise self._taken_step_error(f"the gradient norm of step {step} is not finite")

    def _taken_step_error(self, problem: str) -> UserError:
        """The error for a step that was taken and may have made weights NaN."""
        notes = [
            "no checkpoint was saved after this step, whose weights may hold NaN",
            "a resume starts from the last checkpoint before it",
        ]
        logging_steps = self._spec.logging.logging_steps
        if logging_steps > 1:
            notes.append(
                f"the loss is read every {logging_steps} steps and before a save: an earlier step may be at fault"
            )
        fix = "switch `bf16.check_grad_overflow` on, if it is off"
        return _error_on_all_ranks(
            "OP113", f"{problem}, and the step was taken", "train.on_nonfinite", tuple(notes), fix
        )

    def _is_searching_loss_scale(self) -> bool:
        """True while fp16 searches a loss scale, which may still fall."""
        precision = self._spec.precision
        if not self._engine.fp16_enabled() or precision.loss_scale:
            return False
        return cast("LossScaledOptimizer", self._engine.optimizer).loss_scale > precision.min_loss_scale

    def _apply_policy(self, state: TrainState, before: DataPosition, nonfinite_ranks: tuple[int, ...]) -> SkippedStep:
        train = self._spec.train
        source = (
            f"loss of {_format_ranks(nonfinite_ranks)}" if nonfinite_ranks else "gradient, though every loss is finite"
        )
        message = f"step {state.step} has a NaN or an infinity in the {source}"
        notes = self._describe_rows(before, state.position, nonfinite_ranks)
        if train.on_nonfinite == "stop":
            fix = "check these rows, or set `train.on_nonfinite: skip` to skip such steps"
            return SkippedStep(
                nonfinite_ranks, message, _error_on_all_ranks("OP111", message, "train.on_nonfinite", notes, fix)
            )
        is_untrained = state.skipped == state.step
        fix = "lower `optimizer.learning_rate`, or check these rows"
        if is_untrained:
            message += f"; of {state.step} steps each was skipped, so that no weight has changed"
            fix = "check the loss, the initial weights and these rows; a lower learning rate changes nothing"
        for key, count, text in (
            ("max_skipped_steps", state.skipped, "in all"),
            ("max_consecutive_skipped_steps", state.skipped_in_a_row, "in a row"),
        ):
            limit = getattr(train, key)
            if limit is not None and count >= limit:
                limit_message = f"{message}: the {count}. skipped {text}, `train.{key}` is {limit}"
                return SkippedStep(
                    nonfinite_ranks, message, _error_on_all_ranks("OP112", limit_message, f"train.{key}", notes, fix)
                )
        if is_untrained and state.step == self._total_steps:
            return SkippedStep(
                nonfinite_ranks, message, _error_on_all_ranks("OP112", message, "train.on_nonfinite", notes, fix)
            )
        return SkippedStep(nonfinite_ranks, f"{message}; skipped, {state.skipped} in all", None)

    def _describe_rows(
        self, before: DataPosition, after: DataPosition, nonfinite_ranks: Sequence[int]
    ) -> tuple[str, ...]:
        """Notes on the sequences of the step: of the ranks with a nonfinite loss, else of all."""
        geometry, topology = self._geometry, self._topology
        start = before.offset if after.epoch == before.epoch else 0
        global_batch = f"its global batch is sequences {start} to {start + geometry.global_batch_size - 1}"
        notes = [
            f"{global_batch} in the order of epoch {after.epoch}, drawn with `train.seed: {self._spec.train.seed}`"
        ]
        ranks_per_data_rank = topology.tensor_parallel_size * topology.sequence_parallel_size
        for rank in nonfinite_ranks[:8]:
            data_rank = rank % (topology.world_size // topology.pipeline_parallel_size) // ranks_per_data_rank
            starts = [
                start + (m * geometry.data_parallel_size + data_rank) * geometry.micro_batch_size
                for m in range(geometry.accumulation_steps)
            ]
            spans = ", ".join(
                f"{a} to {a + geometry.micro_batch_size - 1}" if geometry.micro_batch_size > 1 else str(a)
                for a in starts
            )
            notes.append(f"rank {rank} had sequences {spans}")
        return (*notes, "no weight was changed by this step")


def _error_on_all_ranks(gate: str, message: str, key: str, notes: tuple[str, ...], fix: str) -> UserError:
    return AgreedUserError(user_error(gate, message, key=key, notes=notes, fix=fix).findings)


def _format_ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
