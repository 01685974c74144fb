"""What a run does about steps that are not numbers, and when an evaluation ends it.

DeepSpeed skips a step whose gradient has a NaN or an infinity, on all ranks alike, wherever it keeps masters or shards;
at ZeRO stage 0 in fp32 it does not look, so that `guard_steps` does. Which batch it was is found out here, after the
fact: ranks look at their losses only once a step was skipped, so that a healthy run waits for nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness.errors import UserError
from harness.runtime.dataset.sampler import BatchGeometry
from harness.runtime.distributed import AgreedUserError, Distributed
from harness.runtime.topology import Topology
from harness.runtime.train_state import DataPosition, TrainState
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import RunSpec
from harness.spec.sections.launch_spec import EvalSpec


def skip_nonfinite_steps(engine: Any, distributed: Distributed, *, same_gradients: bool) -> None:
    """Make a bare optimizer skip steps whose gradient is not finite, as DeepSpeed's own wrappers do.

    The engine reads `optimizer.overflow` after a step: it counts the skip and keeps the learning rate. `alone`: the
    ranks hold the same gradients, so that they need not agree. Costs one flag that is read back a step.
    """
    optimizer = engine.optimizer
    if hasattr(optimizer, "overflow") or getattr(engine, "torch_autocast_z0_gradscaler", None) is not None:
        return
    original = optimizer.step

    @functools.wraps(original)  # the scheduler of torch has left a mark on it that it looks for
    def step(*arguments: Any, **options: Any) -> Any:
        gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        bad = bool(gradients) and not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients)))
        optimizer.overflow = bad if same_gradients else distributed.any_rank(bad)
        return None if optimizer.overflow else original(*arguments, **options)

    optimizer.overflow = False
    optimizer.step = step


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step that changed nothing: what to tell, and the refusal that ends the run, if it does."""

    nonfinite_ranks: tuple[int, ...]
    """Those whose loss was not a number; none where a gradient alone was not."""
    message: str
    error: UserError | None


class NonfinitePolicy:
    """`train.on_nonfinite` for one run."""

    def __init__(
        self, spec: RunSpec, engine: Any, distributed: Distributed, topology: Topology, geometry: BatchGeometry
    ) -> None:
        self._spec, self._engine, self._distributed, self._topology, self._geometry = (
            spec,
            engine,
            distributed,
            topology,
            geometry,
        )
        self._engine_skipped_steps = int(engine.skipped_steps)

    def check_step(
        self, state: TrainState, before: DataPosition, losses: torch.Tensor
    ) -> tuple[TrainState, SkippedStep | None]:
        """Called by every rank after the step that made `state` of data at `before`, with this rank's loss."""
        skipped = int(self._engine.skipped_steps) != self._engine_skipped_steps
        if self._topology.model_parallel_size > 1:  # stages and shards may hold different gradients
            skipped = self._distributed.any_rank(skipped)
        self._engine_skipped_steps = int(self._engine.skipped_steps)
        if not skipped:
            return (replace(state, skipped_in_a_row=0) if state.skipped_in_a_row else state), None
        finite = self._distributed.all_gather_object(bool(torch.isfinite(losses)))
        bad = tuple(rank for rank, fine in enumerate(finite) if not fine)
        if not bad and self._is_searching_loss_scale():
            return state, None
        state = replace(state, skipped=state.skipped + 1, skipped_in_a_row=state.skipped_in_a_row + 1)
        return state, self._apply_policy(state, before, bad)

    def _is_searching_loss_scale(self) -> bool:
        """Is this fp16's search for a loss scale, which may still fall?"""
        precision = self._spec.precision
        if not self._engine.fp16_enabled() or precision.loss_scale:
            return False
        return bool(self._engine.optimizer.cur_scale > precision.min_loss_scale)

    def _apply_policy(self, state: TrainState, before: DataPosition, bad: tuple[int, ...]) -> SkippedStep:
        train = self._spec.train
        where = f"loss of {_format_ranks(bad)}" if bad else "gradient, though every loss is finite"
        what = f"step {state.step} has a NaN or an infinity in the {where}"
        notes = self._describe_rows(before, state.position, bad)
        if train.on_nonfinite == "stop":
            fix = "look at these rows, or set `train.on_nonfinite: skip` to leave such steps out"
            return SkippedStep(bad, what, _error_on_all_ranks("OP111", what, "train.on_nonfinite", notes, fix))
        for key, count, text in (
            ("max_skipped_steps", state.skipped, "in all"),
            ("max_consecutive_skipped_steps", state.skipped_in_a_row, "in a row"),
        ):
            limit = getattr(train, key)
            if limit is not None and count >= limit:
                reached = f"{what}: the {count}. skipped {text}, `train.{key}` is {limit}"
                fix = "lower `optimizer.learning_rate`, or look at these rows"
                return SkippedStep(bad, what, _error_on_all_ranks("OP112", reached, f"train.{key}", notes, fix))
        return SkippedStep(bad, f"{what}; skipped, {state.skipped} in all", None)

    def _describe_rows(self, before: DataPosition, after: DataPosition, bad: Sequence[int]) -> tuple[str, ...]:
        """Which sequences of the epoch's order it was: of the ranks to blame, else of all."""
        shape, topology = self._geometry, self._topology
        start = before.offset if after.epoch == before.epoch else 0
        whole = f"its global batch is sequences {start} to {start + shape.global_batch_size - 1}"
        notes = [f"{whole} in the order of epoch {after.epoch}, drawn with `train.seed: {self._spec.train.seed}`"]
        inside = topology.tensor_parallel_size * topology.sequence_parallel_size
        for rank in bad[:8]:
            data_rank = rank % (topology.world_size // topology.pipeline_parallel_size) // inside
            parts = [
                start + (m * shape.data_parallel_size + data_rank) * shape.micro_batch_size
                for m in range(shape.accumulation_steps)
            ]
            spans = ", ".join(
                f"{a} to {a + shape.micro_batch_size - 1}" if shape.micro_batch_size > 1 else str(a) for a in parts
            )
            notes.append(f"rank {rank} had sequences {spans}")
        return (*notes, "no weight was changed by this step")


def _error_on_all_ranks(gate: str, message: str, key: str, notes: tuple[str, ...], fix: str) -> UserError:
    return AgreedUserError(user_error(gate, message, key=key, notes=notes, fix=fix).findings)


def _format_ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"


def nonfinite_loss_error(loss: float, step: int) -> UserError | None:
    """The refusal for a step that was taken with a loss that is none; its weights are lost."""
    if math.isfinite(loss):
        return None
    return _error_on_all_ranks(
        "OP113",
        f"the loss of step {step} is {loss}, and the step was taken",
        "train.on_nonfinite",
        ("nothing was saved: the weights may hold NaN", "a resume goes on from the last checkpoint"),
        "switch `bf16.check_grad_overflow` on, if it is off",
    )


def update_early_stopping(spec: EvalSpec, state: TrainState, loss: float) -> tuple[TrainState, str | None]:
    """The state with the best loss and how long ago it was, and the reason to end the run, if patience is out.

    A loss counts as better when it is lower than the best by more than the threshold.
    """
    better = math.isfinite(loss) and (state.best_loss is None or loss < state.best_loss - spec.early_stopping_threshold)
    if better:
        return replace(state, best_loss=loss, best_step=state.step, evaluations_without_gain=0), None
    state = replace(state, evaluations_without_gain=state.evaluations_without_gain + 1)
    if not should_stop_early(spec, state):
        return state, None
    best = "none" if state.best_loss is None else f"{state.best_loss:.4f} of step {state.best_step}"
    count = state.evaluations_without_gain
    return state, f"{count} evaluation{'s' * (count > 1)} in a row no better than the best, {best}"


def should_stop_early(spec: EvalSpec, state: TrainState) -> bool:
    """Has the run ended early?"""
    return spec.early_stopping_patience is not None and state.evaluations_without_gain >= spec.early_stopping_patience
