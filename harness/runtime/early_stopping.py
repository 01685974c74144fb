# SPDX-License-Identifier: Apache-2.0
"""Early stopping: `eval.early_stopping_patience` evaluations in a row that are no better end the run."""

from __future__ import annotations

import math
from dataclasses import replace

from harness.runtime.train_state import TrainState
from harness.spec.sections.training_spec import EvalSpec


def count_evaluation(spec: EvalSpec, state: TrainState, loss: float) -> TrainState:
    """The state with the held-out loss of its step counted. The best loss is the lowest, the first of equals. Patience
    starts again with a loss that is lower by more than the threshold than the one that it started with before.
    """
    state = replace(state, last_eval_step=state.step)
    if math.isfinite(loss) and (state.best_loss is None or loss < state.best_loss):
        state = replace(state, best_loss=loss, best_step=state.step)
    threshold = spec.early_stopping_threshold
    if math.isfinite(loss) and (state.patience_loss is None or loss < state.patience_loss - threshold):
        return replace(state, patience_loss=loss, evaluations_without_gain=0)
    return replace(state, evaluations_without_gain=state.evaluations_without_gain + 1)


def early_stop_reason(spec: EvalSpec, state: TrainState) -> str | None:
    """The reason to end the run once patience is used up; None before."""
    count = state.evaluations_without_gain
    if spec.early_stopping_patience is None or count < spec.early_stopping_patience:
        return None
    best = "none" if state.best_loss is None else f"{state.best_loss:.4f} of step {state.best_step}"
    evaluations = f"{count} evaluation{'s' * (count > 1)} in a row"
    if spec.early_stopping_threshold and state.patience_loss is not None:
        than = f"{state.patience_loss:.4f} by more than {spec.early_stopping_threshold:g}"
        return f"{evaluations} no better than {than}; the best: {best}"
    return f"{evaluations} no better than the best, {best}"
