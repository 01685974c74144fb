# SPDX-License-Identifier: Apache-2.0
"""Runs the engine checks at their moments, and stops the run when one fails.

The training loop calls `EngineChecks` at each moment; nothing else knows the checks.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import deepspeed
import torch

from harness.engine_witness.gradient_witness import GradientWitness
from harness.errors import ExitCode
from harness.file_io import replace_file
from harness.findings import Finding, Fix, Severity
from harness.patches.one_pass_adam import show_gradients_when
from harness.patches.patch_registry import PatchStates
from harness.runtime.comm_timer import COMM_TIMER
from harness.runtime.distributed import AgreedUserError, Distributed
from harness.runtime.engine_checks import model_weights
from harness.runtime.engine_checks.check_results import FILE, CheckResults, evaluate_check, observe_check
from harness.runtime.engine_checks.engine_check import CheckMoment, CheckName, CheckResult, EngineCheck
from harness.runtime.engine_checks.observations import Observations, StepRecord
from harness.runtime.engine_checks.spec_settings import expected_settings_of
from harness.runtime.engine_checks.witness_checks import skipped_outcomes, witness_outcomes
from harness.runtime.engine_protocol import Engine, LossScaledOptimizer
from harness.runtime.micro_batch import BatchGeometry, StepBatch
from harness.runtime.run_config import RunConfig, RunDir, launch_expects_accelerators
from harness.runtime.topology import Topology
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig
from harness.runtime.engine_checks import (
    optimizer_checks,
    parallel_checks,
    parameter_checks,
    setting_checks,
    step_checks,
)

Value = TypeVar("Value")
FIRST_STEPS = 20
COMPARISON_STEPS = (1, 4, FIRST_STEPS)
"""Of the first steps, those after which all ranks compare their observations."""
DRIFT_INTERVAL_STEPS = 200
_MAX_ROWS = 1024

_MODULES = (setting_checks, optimizer_checks, parameter_checks, parallel_checks, step_checks)
CHECKS: tuple[EngineCheck, ...] = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if isinstance(value, EngineCheck)),
        key=lambda check: check.id,
    )
)


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
        config: PreTrainedConfig | None,
    ) -> None:
        """Before `deepspeed.initialize`: compute checksums of the model's weights."""
        self.mode = run_config.run.spec.launch.engine_checks
        self._distributed, self._file = distributed, run_dir.root / FILE
        self._results = CheckResults()
        self._ignored_ids = run_config.run.spec.ignore
        self._start_observations: list[tuple[EngineCheck, Any]] = []
        self._states_on_disk: dict[str, str] = {}
        self._fp16 = False
        self._patches: PatchStates | None = None
        self._witness: GradientWitness | None = None
        self._num_witnessed = 0
        if self.mode == "off":
            return
        expected = expected_settings_of(run_config.run, distributed.world_size, launch_expects_accelerators(run_dir))
        half_dtypes = {getattr(torch, expected.dtype)} - {torch.float32}
        reference_stats = model_weights.compute_reference_stats(model, config) if expected.is_random_init else {}
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
            (check, observe_check(check, observations)) for check in CHECKS if check.moment == "begun"
        ]
        self._witness = witness = GradientWitness(
            engine,
            every=DRIFT_INTERVAL_STEPS,
            weight_decay=self._weight_decay(),
            time_call=COMM_TIMER.time_call,
        )
        witness.attach()
        show_gradients_when(engine, lambda: witness.is_armed)

    def on_batch(self, step_batch: StepBatch, rank: int) -> None:
        """A step begins with this batch; `rank` is the data-parallel rank."""
        if self.mode == "off" or not self._is_early(1):
            return
        observations = self._observations
        if len(observations.steps) + 1 in COMPARISON_STEPS:
            digest = hashlib.blake2b(digest_size=8)
            for tensor in (tensor for batch in step_batch.micro_batches for tensor in batch.host_tensors()):
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
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
        self._record_witness(state.step)

    def on_train_end(self, state: TrainState) -> None:
        """Training has ended in order: evaluate a run that is shorter than the first steps. A collective."""
        if (
            self.mode != "off"
            and self._is_early(1)
            and self._observations.steps
            and len(self._observations.steps) not in COMPARISON_STEPS
        ):
            self._run_checks(("steps",), state.step)

    def _weight_decay(self) -> Callable[[str], float] | None:
        """The decay of a parameter by its name, as `build_engine` groups them; None where nothing decays."""
        decay = self._observations.expected.optimizer_params.get("weight_decay")
        if not isinstance(decay, (int, float)) or not decay:
            return None
        matrices = {n for n, p in self._observations.parameters.items() if len(getattr(p, "ds_shape", p.shape)) >= 2}
        return lambda name: float(decay) if name in matrices else 0.0

    def _record_witness(self, step: int) -> None:
        """After a step that the gradient witness has compared, with the same numbers on every rank."""
        witness = self._witness
        if witness is None:
            return
        reason = witness.unable or witness.fault
        if reason:
            self._witness = None
            self._report([*skipped_outcomes(reason)], step)
        elif len(witness.results) > self._num_witnessed:
            self._num_witnessed = len(witness.results)
            self._report([*witness_outcomes(witness.results[-1])], step)

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
            *((check, observe_check(check, self._observations)) for check in CHECKS if check.moment in moments),
        ]
        self._start_observations = []
        values_by_check = zip(*self._distributed.all_gather_object([value for _, value in local_values]), strict=True)
        results = [
            (check, evaluate_check(check, self._observations.expected, rank_values))
            for (check, _), rank_values in zip(local_values, values_by_check, strict=True)
        ]
        self._report(results, step)

    def _report(self, results: Sequence[tuple[CheckName, CheckResult]], step: int) -> None:
        """Write the results of checks, and stop or print where one failed."""
        findings = [_to_finding(check, result, self.mode) for check, result in self._failed_checks(results)]
        for check, result in results:
            self._results.record(check, result, step, self._ignored_ids.get(check.id))
        if self._distributed.is_main_process and (
            findings or self._results.states() != self._states_on_disk or len(self._observations.steps) >= FIRST_STEPS
        ):
            with contextlib.suppress(OSError):  # the findings are printed, too, and the next write has all results
                replace_file(self._file, self._to_json(), durable=bool(findings))
                self._states_on_disk = self._results.states()
        if findings and self.mode == "stop":
            raise AgreedUserError(findings, ExitCode.ENGINE_CHECK)
        if findings and self._distributed.is_main_process:
            print_findings(findings)

    def _failed_checks(self, results: Sequence[tuple[CheckName, CheckResult]]) -> list[tuple[CheckName, CheckResult]]:
        """The checks that failed, without those that the spec ignores."""
        return [(c, r) for c, r in results if r.state == "differs" and c.id not in self._ignored_ids]

    def _to_json(self) -> str:
        head: dict[str, Any] = {"deepspeed": deepspeed.__version__, "mode": self.mode}
        if self._patches is not None:
            head["patches"] = self._patches.to_json()
        return self._results.to_json(head)


def _fp16_loss_scale(engine: Engine) -> float:
    return float(cast("LossScaledOptimizer", engine.optimizer).loss_scale)


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


def _to_finding(check: CheckName, result: CheckResult, mode: str) -> Finding:
    gates, key, fix = (check.gates, check.key, check.fix) if isinstance(check, EngineCheck) else ((), "", "")
    pages = f"; see also {', '.join(f'`harness explain {gate}`' for gate in gates)}" if gates else ""
    notes = (*result.notes, f"engine check: {check.question}{pages}")
    severity: Severity = "error" if mode == "stop" else "warning"
    if mode == "stop":
        notes += (f"to continue anyway, add `ignore: {{{check.id}: why}}` to the spec",)
    return Finding(check.id, severity, result.text, key=key, notes=notes, fix=Fix(fix) if fix else None)
