# SPDX-License-Identifier: Apache-2.0
"""Early stopping: `eval.early_stopping_patience` evaluations in a row that are no better end the run."""

from __future__ import annotations

import math
from dataclasses import replace

from harness.runtime.train_state import TrainState
from harness.spec.sections.eval_spec import EvalSpec


def update_early_stopping(spec: EvalSpec, state: TrainState, loss: float) -> tuple[TrainState, str | None]:
    """The state with this evaluation's loss counted, and the reason to end the run once patience is used up.

    A loss is better when it is lower than the best by more than the threshold.
    """
    improved = math.isfinite(loss) and (
        state.best_loss is None or loss < state.best_loss - spec.early_stopping_threshold
    )
    if improved:
        return replace(state, best_loss=loss, best_step=state.step, evaluations_without_gain=0), None
    state = replace(state, evaluations_without_gain=state.evaluations_without_gain + 1)
    if not should_stop_early(spec, state):
        return state, None
    best = "none" if state.best_loss is None else f"{state.best_loss:.4f} of step {state.best_step}"
    count = state.evaluations_without_gain
    return state, f"{count} evaluation{'s' * (count > 1)} in a row no better than the best, {best}"


def should_stop_early(spec: EvalSpec, state: TrainState) -> bool:
    """Is patience used up?"""
    return spec.early_stopping_patience is not None and state.evaluations_without_gain >= spec.early_stopping_patience
