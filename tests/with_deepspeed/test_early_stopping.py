"""Patience counts evaluations that are no better by more than the threshold. No engine."""

from __future__ import annotations

from harness.runtime.early_stopping import should_stop_early, update_early_stopping
from harness.runtime.train_state import TrainState
from harness.spec.sections.eval_spec import EvalSpec


def test_better_means_lower_by_more_than_the_threshold() -> None:
    spec = EvalSpec(early_stopping_patience=2, early_stopping_threshold=0.1)
    state, why = update_early_stopping(spec, TrainState(step=10), 2.0)
    assert (state.best_loss, state.best_step, why) == (2.0, 10, None)
    state, why = update_early_stopping(spec, state, 1.95)
    assert (state.best_loss, state.evaluations_without_gain, why) == (2.0, 1, None)
    better, why = update_early_stopping(spec, state, 1.5)
    assert (better.best_loss, better.evaluations_without_gain, why) == (1.5, 0, None)
    state, why = update_early_stopping(spec, state, float("nan"))
    assert why == "2 evaluations in a row no better than the best, 2.0000 of step 10"
    assert should_stop_early(spec, state)


def test_without_patience_nothing_ends() -> None:
    state = TrainState()
    for loss in (1.0, 2.0, 3.0):
        state, why = update_early_stopping(EvalSpec(), state, loss)
        assert why is None
    assert (state.best_loss, state.evaluations_without_gain) == (1.0, 2)
