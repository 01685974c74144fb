# SPDX-License-Identifier: Apache-2.0
"""The DeepSpeed JSON of a run. It has every key whose default moved between releases, and means the same on each of
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.run.resolved_run import ResolvedRun
from harness.spec.deepspeed_optimizer import deepspeed_optimizer
from harness.spec.run_spec import OffloadOptimizerSpec, OffloadParamSpec

ConfigEntry = tuple[str, Any, str]
"""A dotted DeepSpeed key, its value, and the reason for the value."""


@dataclass(frozen=True, slots=True)
class DSConfig:
    """A DeepSpeed configuration and, for each dotted key, the reason for its value."""

    config: Mapping[str, Any]
    reasons: Mapping[str, str]

    @property
    def json_text(self) -> str:
        """The JSON file: two spaces, keys in the order in which they were rendered, a newline at the end."""
        return json.dumps(self.config, indent=2, allow_nan=False) + "\n"


def render_ds_config(run: ResolvedRun) -> DSConfig:
    """The configuration that `deepspeed.initialize` gets for this run."""
    config: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for part in _SECTIONS:
        for key, value, reason in part(run):
            _set_path(config, tuple(key.split(".")), value)
            reasons[key] = reason
    for path, value in _flatten(run.spec.deepspeed, ()):
        _set_path(config, path, value)
        reasons[".".join(path)] = f"`deepspeed.{'.'.join(path)}`"
    return DSConfig(config, reasons)


def render_with_tuned_defaults(run: ResolvedRun, base_dir: Path) -> tuple[ResolvedRun, DSConfig]:
    """The run with its tuned defaults, and its configuration. `base_dir` as for `make_plan`."""
    run = with_tuned_defaults(run, base_dir)
    return run, render_ds_config(run)


def _batch_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    batch, parallel_dims = run.batch, run.parallel_dims
    # Under AutoTP DeepSpeed multiplies by the whole world, so the true global batch would be refused there.
    is_known = batch.is_complete or run.spec.train.global_batch_size
    if batch.global_batch is not None and parallel_dims.autotp == 1 and is_known:
        yield "train_batch_size", batch.global_batch, _batch_reason(run)
    if batch.micro_batch is not None:
        yield (
            "train_micro_batch_size_per_gpu",
            batch.micro_batch,
            _reason_for(run.spec.train.per_device_train_batch_size, "train.per_device_train_batch_size"),
        )
    if batch.accumulation is not None:
        yield (
            "gradient_accumulation_steps",
            batch.accumulation,
            _reason_for(run.spec.train.gradient_accumulation_steps, "train.gradient_accumulation_steps"),
        )


def _batch_reason(run: ResolvedRun) -> str:
    if run.parallel_dims.data is None or not run.batch.is_complete:
        return "`train.global_batch_size`"
    micro, ranks, steps = run.batch.micro_batch, run.parallel_dims.data, run.batch.accumulation
    return f"{micro} per rank x {ranks} data-parallel ranks x {steps} accumulation steps"


def _reason_for(value: object, key: str) -> str:
    return f"`{key}`" if value is not None else f"derived: `{key}` is not given"


def _training_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    yield (
        "gradient_clipping",
        run.spec.train.max_grad_norm,
        "`train.max_grad_norm`, always written: DeepSpeed's default became 1.0 in 0.19.3",
    )
    if run.checkpointing is not None and run.spec.train.offload_activations:
        yield "activation_checkpointing.cpu_checkpointing", True, "`train.offload_activations`"
    yield "steps_per_print", None, "the harness prints its own progress; the default was 10 up to 0.15.1"


def _optimizer_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    optimizer = run.spec.optimizer
    if "optimizer" in run.spec.deepspeed:
        return
    name, params = deepspeed_optimizer(optimizer)
    yield "optimizer.type", name, "`optimizer.type`; DeepSpeed picks the fused or the CPU implementation"
    for key, value in params.items():
        yield f"optimizer.params.{key}", value, _REASONS.get(key, f"`optimizer.{key}`")
    if optimizer.type == "sgd" and run.spec.zero.stage:
        yield (
            "zero_allow_untested_optimizer",
            True,
            "ZeRO's own list has no SGD; it is element-wise, so sharding does not change it",
        )
    if optimizer.type == "muon" and run.spec.zero.stage == 3 and run.spec.zero.reduce_scatter is None:
        yield "zero_optimization.reduce_scatter", False, "Muon needs whole gradients: DeepSpeed refuses it otherwise"


_REASONS = {
    "lr": "`optimizer.learning_rate`",
    "adam_lr": "`optimizer.adam_learning_rate`",
    "weight_decay": "`optimizer.weight_decay`, always written: the default differs between implementations",
    "adam_w_mode": "DeepSpeed's Adam decays like AdamW by default",
}


def _precision_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    precision = run.spec.precision
    if precision.bf16:
        yield "bf16.enabled", True, "`precision.bf16`"
        yield "bf16.check_grad_overflow", True, "skip a step with inf or nan; the default was false up to 0.19.2"
    if precision.fp16:
        yield "fp16.enabled", True, "`precision.fp16`"
        for name in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
            yield f"fp16.{name}", getattr(precision, name), f"`precision.{name}`"


def _zero_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    zero = run.spec.zero
    yield "zero_optimization.stage", zero.stage, "`zero.stage`"
    for name in type(zero).model_fields:
        value = getattr(zero, name)
        if name in ("stage", "offload_optimizer", "offload_param", "pin_memory_backend") or value is None:
            continue
        yield f"zero_optimization.{name}", value, f"`zero.{name}`"
    for section, offload in (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_param)):
        if offload is not None and offload.device != "none":
            yield from _offload_entries(section, offload)


_NVME_ONLY = frozenset(
    ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")
)


def _offload_entries(section: str, offload: OffloadOptimizerSpec | OffloadParamSpec) -> Iterator[ConfigEntry]:
    for name, field in type(offload).model_fields.items():
        value = getattr(offload, name)
        is_written = offload.is_written(name)
        if value is None or (name in _NVME_ONLY and offload.device != "nvme" and not is_written):
            continue
        if name == "overlap_step_gib" or (name == "ratio" and value == field.default and not is_written):
            continue
        release_note = ", always written: the default became true in 0.19.5" if name == "pin_memory" else ""
        yield f"zero_optimization.{section}.{name}", value, f"`zero.{section}.{name}`{release_note}"


def _parallel_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    parallel = run.spec.parallel
    if run.parallel_dims.autotp > 1:
        yield "tensor_parallel.autotp_size", parallel.tensor_parallel_size, "`parallel.tensor_parallel_size`"
    if parallel.sequence_parallel_size > 1 and run.parallel_dims.autotp == 1:  # AutoTP's data group includes them
        # Not `data_parallel_size` as well: the groups that DeepSpeed makes of the two leave gradients unreduced.
        yield "sequence_parallel_size", parallel.sequence_parallel_size, "`parallel.sequence_parallel_size`"
    if parallel.pipeline_parallel_size > 1 and run.checkpointing is not None:
        yield "pipeline.activation_checkpoint_interval", 1, "`train.gradient_checkpointing`: each layer separately"
        yield "pipeline.use_reentrant", False, "the embedding of a reentrant pipeline gets no gradient"


def _telemetry_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    telemetry = run.spec.telemetry
    if telemetry.flops_profiler:
        # DeepSpeed counts finished steps: the tenth step begins when nine are done.
        first = int((telemetry.profile_steps or "5").partition("-")[0])
        yield "flops_profiler.enabled", True, "`telemetry.flops_profiler`"
        yield "flops_profiler.profile_step", max(1, first - 1), "`telemetry.profile_steps`: finished steps before it"
    if telemetry.comms_logger:
        yield "comms_logger.enabled", True, "`telemetry.comms_logger`"
        yield "comms_logger.prof_all", True, "every collective"
        yield "comms_logger.verbose", False, "a summary at the end, not a line for each collective"


def _tuned_default_entries(run: ResolvedRun) -> Iterator[ConfigEntry]:
    for default in run.tuned_defaults or ():
        if not default.ours:
            yield default.key, default.value, default.provenance


_SECTIONS: tuple[Callable[[ResolvedRun], Iterator[ConfigEntry]], ...] = (
    _batch_entries,
    _training_entries,
    _optimizer_entries,
    _precision_entries,
    _zero_entries,
    _parallel_entries,
    _telemetry_entries,
    _tuned_default_entries,
)


def _flatten(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values by path, since a name may have a dot in it (`fc.1`)."""
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flatten(item, (*path, name))
        else:
            yield (*path, name), item


def _set_path(config: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for section in path[:-1]:
        config = config.setdefault(section, {})
    config[path[-1]] = value
