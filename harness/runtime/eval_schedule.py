# SPDX-License-Identifier: Apache-2.0
"""The evaluations of a run: when one is due, what is reported of each, and whether it ends the run.

A checkpoint is saved before the evaluation of its step, so that an evaluation that fails loses nothing. The evaluation
is then written into its manifest. A resume from one without it counts that evaluation first: as it was recorded next to
the checkpoint, or run again where a kill came before.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from harness.checkpoints.evaluations import Evaluations
from harness.run.objective_facts import facts_of
from harness.runtime.early_stopping import count_evaluation, early_stop_reason
from harness.runtime.eval_samples import generate_samples
from harness.runtime.evaluate import evaluate
from harness.runtime.save_schedule import SaveSchedule
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState

_SHOWN = 200
"""Characters of a sample in the log; the file has all."""


class EvalSchedule:
    """`eval` of the spec for one run. Evaluations are collectives: all ranks run them at the same step."""

    def __init__(self, ctx: TrainContext, telemetry: Telemetry, saves: SaveSchedule) -> None:
        self._ctx, self._telemetry, self._saves = ctx, telemetry, saves
        self._spec = ctx.run_config.run.spec.eval

    def is_due(self, step: int) -> bool:
        """Is there an evaluation after this step? The one after the last step is not counted here."""
        steps = self._spec.eval_steps
        return steps is not None and step % steps == 0 and step < self._ctx.total_steps

    def evaluate_at_start(self, state: TrainState, resume: Path | None) -> tuple[TrainState, str | None]:
        """Before the first step: the evaluation of `eval_on_start`, or the one due at the step of the checkpoint
        that its state does not count. Removes what an earlier start recorded of later steps. Where none is due,
        the metrics of a plug-in are tried. Returns as `evaluate`.
        """
        ctx = self._ctx
        self._saves.start_evals(state.step, resume)
        reason = early_stop_reason(self._spec, state)
        is_due = self._spec.eval_on_start if state.step == 0 else self.is_due(state.step)
        if reason is not None or not is_due or state.last_eval_step == state.step:
            if reason is None and ctx.eval_data is not None:
                ctx.objective.make_eval_metrics().try_out(ctx.engine, ctx.stepper, ctx.eval_data)
            return state, reason
        loss = self._read_recorded_loss(resume, state.step) if resume else None
        if loss is None:
            return self.evaluate(state)
        state = count_evaluation(self._spec, state, loss)
        return state, early_stop_reason(self._spec, state)

    def evaluate(self, state: TrainState) -> tuple[TrainState, str | None]:
        """Evaluate on the held-out data. Returns the state that counts it, and the reason to end the run, if any."""
        ctx = self._ctx
        with self._telemetry.pause("evaluation"):
            if ctx.eval_data is None:
                self._telemetry.print_line(
                    f"step {state.step}: nothing is held out to evaluate on (`data.eval_fraction` is 0)"
                )
                return state, None
            start = time.perf_counter()
            result = evaluate(
                ctx.engine,
                ctx.stepper,
                ctx.eval_data,
                ctx.distributed,
                self._spec.max_batches,
                ctx.status.heartbeat,
                ctx.objective.make_eval_metrics(),
                ctx.objective.metrics,
            )
            samples = self._generate_samples()
            entropy = ctx.prepared_data.unigram_entropy
            figures: dict[str, float] = {"loss": result.loss, "tokens": result.tokens}
            if facts_of(ctx.objective.name).unit == "token":
                figures["perplexity"] = float(np.exp(result.loss))
            ctx.metrics.write(
                "eval",
                step=state.step,
                **figures,
                unigram_entropy=entropy,
                seconds=round(time.perf_counter() - start, 6),
                **({"own": result.plugin_metrics} if result.plugin_metrics else {}),
                **({"metrics": result.metrics} if result.metrics else {}),
                **({"samples": samples} if samples else {}),
            )
            state = count_evaluation(self._spec, state, result.loss)
            self._saves.record_eval(state, **figures)
            entropy_note = "" if entropy is None else f" (unigram entropy {entropy:.3f})"
            own = "".join(f", {name} {value:.3g}" for name, value in result.plugin_metrics.items())
            self._telemetry.print_line(f"step {state.step}: held-out loss {result.loss:.3f}{entropy_note}{own}")
            for number, text in enumerate(samples, 1):
                self._telemetry.print_line(f"step {state.step}: sample {number}: {text[:_SHOWN]!r}")
        return state, early_stop_reason(self._spec, state)

    def _generate_samples(self) -> list[str]:
        """The model's continuation of each prompt of `eval.samples` now."""
        ctx = self._ctx
        if not self._spec.samples or ctx.tokenizer is None:
            return []
        spec = ctx.run_config.run.spec
        return generate_samples(ctx.engine, ctx.tokenizer, spec, ctx.distributed, ctx.status.heartbeat)

    def _read_recorded_loss(self, checkpoint: Path, step: int) -> float | None:
        """The loss of the evaluation of this step, as the run of the checkpoint recorded it. The main process reads."""
        distributed = self._ctx.distributed

        def read() -> float | None:
            recorded = Evaluations.read(checkpoint.parent).by_step.get(step) if distributed.is_main_process else None
            return None if recorded is None else float(recorded["loss"])

        return distributed.all_gather_object(distributed.call_or_fail_everywhere(read))[0]
