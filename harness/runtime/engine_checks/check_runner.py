# SPDX-License-Identifier: Apache-2.0
"""Runs the engine checks at their moments, and stops the run when one fails.

The training loop calls `EngineChecks` at each moment; nothing else knows the checks. The settings that
they expect come from spec and launch, and never from the DeepSpeed JSON, which may be wrong; the section `deepspeed` of
a spec overrides what is rendered, so it overrides here too.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import deepspeed
import torch

from harness.engine_witness.gradient_witness import GradientWitness
from harness.errors import ExitCode
from harness.file_io import replace_file
from harness.findings import Finding, Fix, Severity
from harness.patches.one_pass_adam import show_gradients_when
from harness.patches.patch_registry import PatchStates
from harness.run.resolved_run import ParallelDims, ResolvedRun
from harness.runtime.comm_timer import COMM_TIMER
from harness.runtime.distributed import AgreedUserError, Distributed
from harness.runtime.engine_checks import (
    model_weights,
    optimizer_checks,
    parallel_checks,
    parameter_checks,
    setting_checks,
    step_checks,
)
from harness.runtime.engine_checks.check_results import FILE, CheckResults, evaluate_check, observe_check
from harness.runtime.engine_checks.engine_check import CheckMoment, CheckName, CheckResult, EngineCheck
from harness.runtime.engine_checks.expected_settings import TORCH_DTYPES, ExpectedSettings, torch_dtype_name
from harness.runtime.engine_checks.observations import Observations, StepRecord
from harness.runtime.engine_checks.witness_checks import skipped_outcomes, witness_outcomes
from harness.runtime.engine_protocol import Engine, LossScaledOptimizer
from harness.runtime.micro_batch import BatchGeometry, StepBatch
from harness.runtime.models.model_config import is_random_init
from harness.runtime.run_config import RunConfig, RunDir, launch_expects_accelerators
from harness.runtime.topology import Topology
from harness.runtime.train_state import TrainState
from harness.runtime.user_errors import print_findings
from harness.spec.deepspeed_optimizer import deepspeed_optimizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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


def expected_settings_of(run: ResolvedRun, world_size: int, uses_accelerators: bool | None) -> ExpectedSettings:
    """The expected settings of a run on `world_size` ranks."""
    spec, overrides = run.spec, run.spec.deepspeed

    def get_override(path: str, default: Any) -> Any:
        value: Any = overrides
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    zero, dims = (
        spec.zero,
        ParallelDims(world_size, run.parallel_dims.tensor, run.parallel_dims.pipeline, run.parallel_dims.sequence),
    )
    name, params = deepspeed_optimizer(spec.optimizer)
    if isinstance(overrides.get("optimizer"), Mapping):  # instead of the spec's own, not laid over it
        name, params = overrides["optimizer"].get("type", ""), dict(overrides["optimizer"].get("params") or {})
    offloads = {}
    for kind, section in (("optimizer", zero.offload_optimizer), ("param", zero.offload_param)):
        values = {} if section is None else section.model_dump()
        offloads[kind] = values | dict(get_override(f"zero_optimization.offload_{kind}", {}) or {})
    precision = next((f for f, on in (("bf16", spec.precision.bf16), ("fp16", spec.precision.fp16)) if on), "fp32")
    for key in ("bf16", "fp16"):
        precision = key if get_override(f"{key}.enabled", False) is True else precision
    has_low_precision_master = get_override(f"{precision}.{precision}_master_weights_and_grads", False)
    autocast = get_override("torch_autocast.enabled", False)
    scheduler = get_override("scheduler", None)
    experts = get_override("expert_parallel", None)
    return ExpectedSettings(
        zero_stage=get_override("zero_optimization.stage", zero.stage),
        offload_optimizer=str(offloads["optimizer"].get("device") or "none"),
        offload_param=str(offloads["param"].get("device") or "none"),
        offload_ratio=float(offloads["optimizer"].get("ratio") or 1.0),
        nvme_paths=tuple(
            str(o["nvme_path"]) for o in offloads.values() if o.get("device") == "nvme" and o.get("nvme_path")
        ),
        dtype=TORCH_DTYPES[precision],
        master_dtype=TORCH_DTYPES[precision] if has_low_precision_master else "float32",
        accumulation_dtype=torch_dtype_name(get_override("data_types.grad_accum_dtype", None)),
        communication_dtype=torch_dtype_name(get_override("communication_data_type", None)),
        autocast_dtype=(torch_dtype_name(get_override("torch_autocast.dtype", None)) or "any")
        if autocast is True
        else None,
        gradient_clipping=get_override("gradient_clipping", spec.train.max_grad_norm),
        micro_batch_size=get_override("train_micro_batch_size_per_gpu", run.batch.micro_batch),
        gradient_accumulation_steps=get_override("gradient_accumulation_steps", run.batch.accumulation),
        global_batch_size=run.batch.global_batch,
        optimizer=str(name).lower(),
        optimizer_params=params,
        scheduler=None if scheduler else spec.scheduler,
        ds_scheduler=scheduler or None,
        parallel_dims=dims,
        hpz_partition_size=get_override("zero_optimization.zero_hpz_partition_size", 1),
        expert_parallel_size=int(experts.get("autoep_size", experts.get("ep_size", 1)))
        if isinstance(experts, Mapping)
        else 1,
        compile_enabled=spec.train.torch_compile or get_override("compile.deepcompile", False) is True,
        is_random_init=is_random_init(spec.model) and spec.plugins.file is None and spec.objective == "causal_lm",
        seed=spec.train.seed,
        uses_accelerators=uses_accelerators,
    )
