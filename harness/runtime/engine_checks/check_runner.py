"""Asks the claims when their time has come, and stops the run when one does not hold.

The loop tells what happens; nothing else knows that claims exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import deepspeed
import torch

from harness.errors import ExitCode
from harness.file_io import replace_file
from harness.findings import Finding, Fix
from harness.runtime.context import RunContext
from harness.runtime.distributed import AgreedUserError, Distributed
from harness.runtime.engine_checks import init_stats, model_weights
from harness.runtime.engine_checks.checks import CHECKS
from harness.runtime.engine_checks.engine_check import (
    CheckMoment,
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_skipped,
)
from harness.runtime.engine_checks.expected_settings import expected_settings_of
from harness.runtime.engine_checks.observations import Observations, StepRecord
from harness.runtime.micro_batch import StepBatch
from harness.runtime.run_config import RunConfig, RunDir, launch_expects_accelerators
from harness.runtime.topology import Topology
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings

FILE = "engine_checks.json"
FORMAT_VERSION = 1
FIRST_STEPS = 20
COMPARISON_STEPS = (1, 4, FIRST_STEPS)
"""Of the first steps, those after which all ranks compare what they saw."""
DRIFT_INTERVAL_STEPS = 200
_MAX_ROWS = 1024
_RESULT_FIELDS = tuple(field.name for field in fields(CheckResult))


class EngineChecks:
    """Of one run, on every rank: all call the same methods at the same steps. `launch.engine_checks: off`: they do nothing."""

    def __init__(
        self, orders: RunConfig, run_dir: RunDir, ranks: Distributed, topology: Topology, model: Any, config: Any
    ) -> None:
        """Before `deepspeed.initialize`: takes sums of the model's weights."""
        self.mode = orders.run.spec.launch.engine_checks
        self._ranks, self._file = ranks, run_dir.root / FILE
        self._results: dict[str, dict[str, Any]] = {}
        self._ignored_ids = orders.run.spec.ignore
        self._start_observations: list[tuple[EngineCheck, Any]] = []
        self._states_on_disk: dict[str, str] = {}
        self._fp16 = False
        if self.mode == "off":
            return
        asked = expected_settings_of(orders.run, ranks.world_size, launch_expects_accelerators(run_dir))
        half = {getattr(torch, asked.dtype)} - {torch.float32}
        fresh = init_stats.compute_reference_stats(model, config) if asked.is_random_init else {}
        self._observations = Observations(
            asked, topology, config, model_weights.record_weights(model, tuple(half)), fresh
        )

    def on_engine_built(self, engine: Any) -> None:
        """After `deepspeed.initialize`, before a checkpoint is loaded. Raises RefusedByAll. A collective."""
        if self.mode != "off":
            self._observations.engine, self._observations.parameters = engine, dict(engine.module.named_parameters())
            self._run_checks(("built",), 0)
            self._observations.initial_weights = {}

    def on_train_start(self, context: RunContext, state: TrainState) -> None:
        """Before the first step: looks, and judges with what is seen in that step."""
        if self.mode == "off":
            return
        seen, engine, shape = self._observations, context.engine, context.train_data.geometry
        self._fp16 = bool(engine.fp16_enabled())
        seen.start_step, seen.total_steps, seen.loss_divisor = (
            state.step,
            context.total_steps,
            shape.accumulation_steps * shape.data_parallel_size,
        )
        seen.skipped_steps_at_start, seen.global_steps_at_start = int(engine.skipped_steps), int(engine.global_steps)
        seen.micro_steps_at_start = int(engine.micro_steps)
        seen.scheduler_steps_at_start = int(getattr(engine.lr_scheduler, "last_epoch", 0) or 0)
        self._start_observations = [(claim, _observe(claim, seen)) for claim in CHECKS if claim.moment == "begun"]

    def on_batch(self, drawn: StepBatch, rank: int) -> None:
        """A step begins, with these micro-batches of data rank `rank`."""
        if self.mode == "off" or not self._is_early(1):
            return
        seen = self._observations
        if len(seen.steps) + 1 in COMPARISON_STEPS:
            digest = hashlib.blake2b(digest_size=8)
            for batch in drawn.micro_batches:
                digest.update(batch.input_ids.numpy().tobytes())
            rows = drawn.row_indices[:, rank].reshape(-1)[:_MAX_ROWS].tolist()
            step = seen.start_step + len(seen.steps) + 1
            seen.last_batch = {"digest": digest.hexdigest(), "rows": rows, "step": step}
        if seen.weight_change is None and seen.engine is not None and seen.engine.get_lr()[0] > 0:
            seen.weights_before_step = model_weights.sample_elements(model_weights.master_weights(seen.engine))

    def on_step_end(self, state: TrainState, rate: float, losses: torch.Tensor) -> None:
        """A step is over. Raises RefusedByAll after some of the first steps, and where replicas drift."""
        if self.mode == "off":
            return
        if self._is_early(1):
            self._record_step(state, rate, losses)
            if len(self._observations.steps) in COMPARISON_STEPS:
                self._run_checks(("steps", "drift") if len(self._observations.steps) == 1 else ("steps",), state.step)
        elif state.step % DRIFT_INTERVAL_STEPS == 0:
            self._observations.replica_comparisons += 1
            self._run_checks(("drift",), state.step)

    def on_train_end(self, state: TrainState) -> None:
        """Training has ended in order: a run of fewer steps than are looked at is judged now. A collective."""
        if (
            self.mode != "off"
            and self._is_early(1)
            and self._observations.steps
            and len(self._observations.steps) not in COMPARISON_STEPS
        ):
            self._run_checks(("steps",), state.step)

    def _is_early(self, more: int) -> bool:
        return len(self._observations.steps) + more <= FIRST_STEPS

    def _record_step(self, state: TrainState, rate: float, losses: torch.Tensor) -> None:
        seen, engine = self._observations, self._observations.engine
        norm = engine.get_global_grad_norm()
        scale = float(engine.optimizer.cur_scale) if self._fp16 else _loss_scale(engine)
        before = seen.steps[-1].skipped_steps if seen.steps else seen.skipped_steps_at_start
        taken = StepRecord(
            state.step, float(rate), int(engine.skipped_steps), scale, _detached_copy(norm), _detached_copy(losses)
        )
        seen.steps.append(taken)
        if seen.weight_change is None and seen.weights_before_step is not None and taken.skipped_steps == before:
            now, was = model_weights.sample_elements(model_weights.master_weights(engine)), seen.weights_before_step
            if was.numel() and now.shape == was.shape:
                move, largest = float((now - was).abs().max()), float(was.abs().max())
                seen.weight_change = {
                    "step": state.step,
                    "start": seen.start_step,
                    "rate": rate,
                    "move": move,
                    "weight": largest,
                }
        seen.weights_before_step = None

    def _run_checks(self, moments: tuple[CheckMoment, ...], step: int) -> None:
        """Look on this rank, gather, judge; stop if that is what `launch.engine_checks` says."""
        looked = [
            *self._start_observations,
            *((claim, _observe(claim, self._observations)) for claim in CHECKS if claim.moment in moments),
        ]
        self._start_observations = []
        everyone = zip(*self._ranks.all_gather_object([look for _, look in looked]), strict=True)
        answers = [
            (claim, _evaluate(claim, self._observations, looks))
            for (claim, _), looks in zip(looked, everyone, strict=True)
        ]
        wrong = [_to_finding(claim, answer, self.mode) for claim, answer in self._failed_checks(answers)]
        for claim, answer in answers:
            self._record_result(claim, answer, step)
        if self._ranks.is_main_process and (
            wrong or self._states() != self._states_on_disk or len(self._observations.steps) >= FIRST_STEPS
        ):
            self._states_on_disk = self._states()
            replace_file(self._file, self._to_json(), durable=bool(wrong))
        if wrong and self.mode == "stop":
            raise AgreedUserError(wrong, ExitCode.ENGINE_CHECK)
        if wrong and self._ranks.is_main_process:
            print_findings(wrong)

    def _states(self) -> dict[str, str]:
        return {name: answer["state"] for name, answer in self._results.items()}

    def _failed_checks(
        self, answers: Sequence[tuple[EngineCheck, CheckResult]]
    ) -> list[tuple[EngineCheck, CheckResult]]:
        """What differs, unless the spec puts up with it."""
        return [(c, a) for c, a in answers if a.state == "differs" and c.id not in self._ignored_ids]

    def _to_json(self) -> str:
        """The file: a claim a line. (Indented by `json` it would take ten times as long.)"""
        head = {"format_version": FORMAT_VERSION, "deepspeed": deepspeed.__version__, "mode": self.mode}
        claims = ",\n".join(json.dumps(self._results[name], default=str) for name in sorted(self._results))
        return f'{json.dumps(head)[:-1]}, "claims": [\n{claims}\n]}}\n'

    def _record_result(self, claim: EngineCheck, answer: CheckResult, step: int) -> None:
        """What was once found wrong stays told; what once held is not forgotten for a later look that cannot tell."""
        before = self._results.get(claim.id, {}).get("state")
        if before == "differs" or (before == "holds" and answer.state == "skipped"):
            return
        about = {"id": claim.id, "name": claim.name, "question": claim.question, "step": step}
        told = {name: value for name in _RESULT_FIELDS if (value := getattr(answer, name)) not in (None, "", ())}
        if answer.state == "differs" and claim.id in self._ignored_ids:
            told["ignored"] = self._ignored_ids[claim.id]
        self._results[claim.id] = {**about, **told}


def _loss_scale(engine: Any) -> float | None:
    """Of `torch_autocast` in fp16."""
    for name in ("torch_autocast_gradscaler", "torch_autocast_z0_gradscaler"):
        # Not by getattr: for a name that it lacks, DeepSpeed's engine lists all its names and the model's each time.
        scaler = getattr(engine.optimizer, name, None) or vars(engine).get(name)
        if scaler is not None:
            return float(scaler.get_scale())
    return None


def _detached_copy(value: Any) -> Any:
    """A copy that stays as it is, where it is: nothing waits for the device."""
    return value.detach().clone() if torch.is_tensor(value) else value


def _observe(claim: EngineCheck, seen: Observations) -> Any:
    """What this rank sees: ("seen", value), ("skipped", why) or ("failed", why)."""
    try:
        return "seen", claim.observe(seen)
    except NotApplicable as why:
        return "skipped", str(why)
    except Exception as error:  # DeepSpeed's insides move: a claim that cannot look any more says nothing
        return "failed", f"{type(error).__name__}: {error}"[:200]


def _evaluate(claim: EngineCheck, seen: Observations, everyone: Sequence[Any]) -> CheckResult:
    """The same on every rank."""
    for kind, why in everyone:
        if kind == "failed":
            return check_skipped(f"could not be asked: {why}")
    for kind, why in everyone:
        if kind == "skipped":
            return check_skipped(why)
    try:
        return claim.evaluate(seen.expected, [value for _, value in everyone])
    except Exception as error:  # as above
        return check_skipped(f"could not be asked: {type(error).__name__}: {error}"[:200])


def _to_finding(claim: EngineCheck, answer: CheckResult, mode: str) -> Finding:
    pages = f"; see also {', '.join(f'`harness explain {gate}`' for gate in claim.gates)}" if claim.gates else ""
    notes = (*answer.notes, f"asked of the engine: {claim.question}{pages}")
    severity = "error" if mode == "stop" else "warning"
    if mode == "stop":
        notes += (f"to go on all the same, put `ignore: {{{claim.id}: why}}` into the spec",)
    return Finding(
        claim.id, severity, answer.text, key=claim.key, notes=notes, fix=Fix(claim.fix) if claim.fix else None
    )
