# SPDX-License-Identifier: Apache-2.0
"""Runs the engine checks at their moments, and stops the run when one fails.

The training loop calls `EngineChecks` at each moment; nothing else knows the checks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

import deepspeed
import torch

from harness.errors import ExitCode
from harness.file_io import replace_file
from harness.findings import Finding, Fix, Severity
from harness.patches.patch_registry import PatchStates
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
from harness.runtime.engine_protocol import Engine, LossScaledOptimizer
from harness.runtime.micro_batch import BatchGeometry, StepBatch
from harness.runtime.run_config import RunConfig, RunDir, launch_expects_accelerators
from harness.runtime.topology import Topology
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Value = TypeVar("Value")
FILE = "engine_checks.json"
FORMAT_VERSION = 1
FIRST_STEPS = 20
COMPARISON_STEPS = (1, 4, FIRST_STEPS)
"""Of the first steps, those after which all ranks compare their observations."""
DRIFT_INTERVAL_STEPS = 200
_MAX_ROWS = 1024
_RESULT_FIELDS = tuple(field.name for field in fields(CheckResult))


class EngineChecks:
    """The checks of one run. All ranks call the same methods at the same steps.

    With `launch.engine_checks: off` no method does anything.
    """

    def __init__(
        self,
        run_config: RunConfig,
        run_dir: RunDir,
        distributed: Distributed,
        topology: Topology,
        model: torch.nn.Module,
        config: PreTrainedConfig,
    ) -> None:
        """Before `deepspeed.initialize`: compute checksums of the model's weights."""
        self.mode = run_config.run.spec.launch.engine_checks
        self._distributed, self._file = distributed, run_dir.root / FILE
        self._results: dict[str, dict[str, Any]] = {}
        self._ignored_ids = run_config.run.spec.ignore
        self._start_observations: list[tuple[EngineCheck, Any]] = []
        self._states_on_disk: dict[str, str] = {}
        self._fp16 = False
        self._patches: PatchStates | None = None
        if self.mode == "off":
            return
        expected = expected_settings_of(run_config.run, distributed.world_size, launch_expects_accelerators(run_dir))
        half_dtypes = {getattr(torch, expected.dtype)} - {torch.float32}
        reference_stats = init_stats.compute_reference_stats(model, config) if expected.is_random_init else {}
        self._observations = Observations(
            expected, topology, config, model_weights.record_weights(model, tuple(half_dtypes)), reference_stats
        )

    def on_engine_built(self, engine: Engine, patches: PatchStates) -> None:
        """After `deepspeed.initialize`, before a checkpoint is loaded. Raises AgreedUserError. A collective."""
        if self.mode != "off":
            self._patches = patches
            self._observations.engine, self._observations.parameters = engine, dict(engine.module.named_parameters())
            self._run_checks(("built",), 0)
            self._observations.initial_weights = {}

    def on_train_start(self, state: TrainState, geometry: BatchGeometry, total_steps: int) -> None:
        """Before the first step: observe now, evaluate after that step."""
        if self.mode == "off":
            return
        observations, engine = self._observations, self._observations.engine
        self._fp16 = bool(engine.fp16_enabled())
        observations.start_step, observations.total_steps = state.step, total_steps
        observations.loss_divisor = geometry.accumulation_steps * geometry.data_parallel_size
        observations.skipped_steps_at_start = int(engine.skipped_steps)
        observations.global_steps_at_start = int(engine.global_steps)
        observations.micro_steps_at_start = int(engine.micro_steps)
        observations.scheduler_steps_at_start = int(getattr(engine.lr_scheduler, "last_epoch", 0) or 0)
        self._start_observations = [
            (check, _observe(check, observations)) for check in CHECKS if check.moment == "begun"
        ]

    def on_batch(self, step_batch: StepBatch, rank: int) -> None:
        """A step begins with this batch; `rank` is the data-parallel rank."""
        if self.mode == "off" or not self._is_early(1):
            return
        observations = self._observations
        if len(observations.steps) + 1 in COMPARISON_STEPS:
            digest = hashlib.blake2b(digest_size=8)
            for batch in step_batch.micro_batches:
                digest.update(batch.input_ids.numpy().tobytes())
            rows = step_batch.row_indices[:, rank].reshape(-1)[:_MAX_ROWS].tolist()
            step = observations.start_step + len(observations.steps) + 1
            observations.last_batch = {"digest": digest.hexdigest(), "rows": rows, "step": step}
        engine = observations.engine
        if observations.weight_change is None and engine.get_lr()[0] > 0:
            masters = model_weights.master_weights(engine)
            observations.weights_before_step = model_weights.sample_elements(masters)

    def on_step_end(self, state: TrainState, learning_rate: float, losses: torch.Tensor) -> None:
        """A step is over. After some steps a collective that may raise AgreedUserError."""
        if self.mode == "off":
            return
        if self._is_early(1):
            self._record_step(state, learning_rate, losses)
            if len(self._observations.steps) in COMPARISON_STEPS:
                self._run_checks(("steps", "drift") if len(self._observations.steps) == 1 else ("steps",), state.step)
        elif state.step % DRIFT_INTERVAL_STEPS == 0:
            self._observations.replica_comparisons += 1
            self._run_checks(("drift",), state.step)

    def on_train_end(self, state: TrainState) -> None:
        """Training has ended in order: evaluate a run that is shorter than the first steps. A collective."""
        if (
            self.mode != "off"
            and self._is_early(1)
            and self._observations.steps
            and len(self._observations.steps) not in COMPARISON_STEPS
        ):
            self._run_checks(("steps",), state.step)

    def _is_early(self, num_more: int) -> bool:
        return len(self._observations.steps) + num_more <= FIRST_STEPS

    def _record_step(self, state: TrainState, learning_rate: float, losses: torch.Tensor) -> None:
        observations, engine = self._observations, self._observations.engine
        grad_norm = engine.get_global_grad_norm()
        loss_scale = _fp16_loss_scale(engine) if self._fp16 else _autocast_loss_scale(engine)
        skipped_before = (
            observations.steps[-1].skipped_steps if observations.steps else observations.skipped_steps_at_start
        )
        record = StepRecord(
            state.step,
            float(learning_rate),
            int(engine.skipped_steps),
            loss_scale,
            _detached_copy(grad_norm),
            _detached_copy(losses),
        )
        observations.steps.append(record)
        weights_before = observations.weights_before_step
        is_skipped = record.skipped_steps != skipped_before
        if observations.weight_change is None and weights_before is not None and not is_skipped:
            weights = model_weights.sample_elements(model_weights.master_weights(engine))
            if weights_before.numel() and weights.shape == weights_before.shape:
                observations.weight_change = {
                    "step": state.step,
                    "start": observations.start_step,
                    "rate": learning_rate,
                    "move": float((weights - weights_before).abs().max()),
                    "weight": float(weights_before.abs().max()),
                }
        observations.weights_before_step = None

    def _run_checks(self, moments: tuple[CheckMoment, ...], step: int) -> None:
        """Observe on this rank, gather, evaluate; stop where `launch.engine_checks` is `stop`."""
        local_values = [
            *self._start_observations,
            *((check, _observe(check, self._observations)) for check in CHECKS if check.moment in moments),
        ]
        self._start_observations = []
        values_by_check = zip(*self._distributed.all_gather_object([value for _, value in local_values]), strict=True)
        results = [
            (check, _evaluate(check, self._observations, rank_values))
            for (check, _), rank_values in zip(local_values, values_by_check, strict=True)
        ]
        findings = [_to_finding(check, result, self.mode) for check, result in self._failed_checks(results)]
        for check, result in results:
            self._record_result(check, result, step)
        if self._distributed.is_main_process and (
            findings or self._states() != self._states_on_disk or len(self._observations.steps) >= FIRST_STEPS
        ):
            self._states_on_disk = self._states()
            replace_file(self._file, self._to_json(), durable=bool(findings))
        if findings and self.mode == "stop":
            raise AgreedUserError(findings, ExitCode.ENGINE_CHECK)
        if findings and self._distributed.is_main_process:
            print_findings(findings)

    def _states(self) -> dict[str, str]:
        return {name: result["state"] for name, result in self._results.items()}

    def _failed_checks(
        self, results: Sequence[tuple[EngineCheck, CheckResult]]
    ) -> list[tuple[EngineCheck, CheckResult]]:
        """The checks that failed, without those that the spec ignores."""
        return [(c, r) for c, r in results if r.state == "differs" and c.id not in self._ignored_ids]

    def _to_json(self) -> str:
        """The text of engine_checks.json, one check a line. (`json` with an indent takes ten times as long.)"""
        head: dict[str, Any] = {"format_version": FORMAT_VERSION, "deepspeed": deepspeed.__version__, "mode": self.mode}
        if self._patches is not None:
            head["patches"] = self._patches.to_json()
        lines = ",\n".join(json.dumps(self._results[name], default=str) for name in sorted(self._results))
        return f'{json.dumps(head)[:-1]}, "claims": [\n{lines}\n]}}\n'

    def _record_result(self, check: EngineCheck, result: CheckResult, step: int) -> None:
        """Record a result. A failure stays, and a skipped check does not replace one that passed."""
        earlier_state = self._results.get(check.id, {}).get("state")
        if earlier_state == "differs" or (earlier_state == "holds" and result.state == "skipped"):
            return
        header = {"id": check.id, "name": check.name, "question": check.question, "step": step}
        values = {name: value for name in _RESULT_FIELDS if (value := getattr(result, name)) not in (None, "", ())}
        if result.state == "differs" and check.id in self._ignored_ids:
            values["ignored"] = self._ignored_ids[check.id]
        self._results[check.id] = {**header, **values}


def _fp16_loss_scale(engine: Engine) -> float:
    return float(cast("LossScaledOptimizer", engine.optimizer).cur_scale)


def _autocast_loss_scale(engine: Engine) -> float | None:
    """The loss scale of `torch_autocast` in fp16."""
    for name in ("torch_autocast_gradscaler", "torch_autocast_z0_gradscaler"):
        # Not by getattr: for a name that it lacks, DeepSpeed's engine lists all its names and the model's each time.
        scaler = getattr(engine.optimizer, name, None) or vars(engine).get(name)
        if scaler is not None:
            return float(scaler.get_scale())
    return None


def _detached_copy(value: Value) -> Value:
    """A copy on the same device. Nothing waits for the device."""
    return cast("Value", value.detach().clone()) if isinstance(value, torch.Tensor) else value


def _observe(check: EngineCheck, observations: Observations) -> Any:
    """The observation of this rank: ("observed", value), ("skipped", reason) or ("failed", reason)."""
    try:
        return "observed", check.observe(observations)
    except NotApplicable as reason:
        return "skipped", str(reason)
    except Exception as error:  # DeepSpeed's insides move: a check that cannot observe them is skipped
        return "failed", f"{type(error).__name__}: {error}"[:200]


def _evaluate(check: EngineCheck, observations: Observations, rank_values: Sequence[Any]) -> CheckResult:
    """The result of a check, the same on every rank."""
    for outcome, reason in rank_values:
        if outcome == "failed":
            return check_skipped(f"not applicable: {reason}")
    for outcome, reason in rank_values:
        if outcome == "skipped":
            return check_skipped(reason)
    try:
        return check.evaluate(observations.expected, [value for _, value in rank_values])
    except Exception as error:  # as above
        return check_skipped(f"could not be checked: {type(error).__name__}: {error}"[:200])


def _to_finding(check: EngineCheck, result: CheckResult, mode: str) -> Finding:
    pages = f"; see also {', '.join(f'`harness explain {gate}`' for gate in check.gates)}" if check.gates else ""
    notes = (*result.notes, f"engine check: {check.question}{pages}")
    severity: Severity = "error" if mode == "stop" else "warning"
    if mode == "stop":
        notes += (f"to continue anyway, add `ignore: {{{check.id}: why}}` to the spec",)
    return Finding(
        check.id, severity, result.text, key=check.key, notes=notes, fix=Fix(check.fix) if check.fix else None
    )
