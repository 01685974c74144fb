# SPDX-License-Identifier: Apache-2.0
"""The engine checks that make sense with a DeepSpeed JSON alone, in anybody's training loop.

Those of the harness's own loop are used as they are where the JSON states what they compare with. What only a run spec
states (the schedule, the initial weights, the samples) is not checked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from harness.engine_watch import source_weights
from harness.run.resolved_run import ParallelDims
from harness.runtime.engine_checks import optimizer_checks, parameter_checks, setting_checks, step_checks
from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import TORCH_DTYPES, ExpectedSettings, torch_dtype_name
from harness.runtime.engine_checks.model_weights import (
    local_checksums,
    master_weights,
    numel_of,
    parameter_groups_of,
    select_names,
)
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.engine_checks.parallel_checks import REPLICAS, drift_result

_SAME_FILE = "give `deepspeed.initialize` and `harness.watch` the same file"
_OPEN = "the JSON leaves it open"


def _adapt(check: EngineCheck, key: str, fix: str, is_stated: Callable[[ExpectedSettings], bool]) -> EngineCheck:
    """A check of the loop with the JSON's key and a fix in its words, skipped where the JSON states nothing."""

    def observe(observations: Observations) -> Any:
        if not is_stated(observations.expected):
            raise NotApplicable(_OPEN)
        return check.observe(observations)

    return replace(check, key=key, fix=fix, observe=observe, question=check.question.replace("the spec", "the JSON"))


def _observe_batch_sizes(observations: Observations) -> Any:
    if observations.engine.dp_world_size != dist.get_world_size():
        raise NotApplicable("ranks share micro-batches: DeepSpeed's own product counts them in several ways")
    return setting_checks.ENGINE_BATCH_SIZES.observe(observations)


def _observe_dtypes(observations: Observations) -> Any:
    if any(not p.is_floating_point() for p in observations.engine.module.parameters()):
        raise NotApplicable("the model has quantized weights")
    return parameter_checks.ENGINE_DTYPES.observe(observations)


def _observe_groups(observations: Observations) -> Any:
    """As the loop's own check, for the parameters that the optimizer was given: a script may leave some out."""
    engine = observations.engine
    if isinstance(engine, PipelineEngine) or int(engine.dp_world_size) != dist.get_world_size():
        raise NotApplicable("the model is sharded over ranks in other ways than by ZeRO")
    grouped = [p for group in parameter_groups_of(engine.optimizer) for p in group if p.requires_grad]
    num_groups = Counter(map(id, grouped))
    repeated = [name for name, p in observations.parameters.items() if num_groups[id(p)] > 1]
    is_swapped = bool(getattr(engine.optimizer, "swap_optimizer", False))
    has_experts = any(getattr(p, "allreduce", True) is False for p in grouped)
    is_subdivided = "MiCS" in type(engine.optimizer).__name__  # gone from DeepSpeed with 0.19.7
    return {
        "missing": repeated[:3],
        "frozen": [],
        "other": [],
        "trained": sum(numel_of(p) for p in grouped),
        "held": None if is_swapped or has_experts or is_subdivided else sum(m.numel() for m in master_weights(engine)),
        "parameters": len(grouped),
    }


def _observe_settings(observations: Observations) -> Any:
    if len(observations.engine.optimizer.param_groups) > 1:
        raise NotApplicable("the script made parameter groups, which may have other settings")
    return optimizer_checks.OPTIMIZER_SETTINGS.observe(observations)


def _observe_replicas(observations: Observations) -> Any:
    """Checksums of this rank's parameters, and the ranks that hold the same ones, by DeepSpeed's own groups."""
    engine = observations.engine
    group = vars(engine).get("seq_data_parallel_group")
    ranks = sorted(dist.get_process_group_ranks(group)) if group is not None else list(range(dist.get_world_size()))
    if len(ranks) < 2:
        raise NotApplicable("no parameter is replicated")
    if engine.zero_optimization_stage() == 3:
        raise NotApplicable("at stage 3 every rank has other shards")
    named = [(n, p) for n, p in observations.parameters.items() if getattr(p, "allreduce", True) is not False]
    # Each comparison starts at another weight, until all had their turn.
    start = (observations.replica_comparisons * 61) % max(1, len(named))
    names = select_names(named[start:] + named[:start])
    checksums = local_checksums(engine, observations.parameters, names)
    return {"ranks": ranks, "weights": {name: list(sums) for name, (_, _, sums) in checksums.items()}}


def _evaluate_replicas(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    for rank, values in enumerate(rank_values):
        other = values["ranks"][0]
        for name, checksum in values["weights"].items():
            if checksum != rank_values[other]["weights"].get(name, checksum):
                return drift_result(name, other, rank)
    return check_passed({"weights": len(rank_values[0]["weights"])})


def _is_always_stated(expected: ExpectedSettings) -> bool:  # noqa: ARG001
    return True


CHECKS: tuple[EngineCheck, ...] = (
    _adapt(
        setting_checks.ZERO_STAGE,
        "zero_optimization.stage",
        f"write a number from 0 to 3, and {_SAME_FILE}",
        lambda expected: expected.zero_stage is not None,
    ),
    _adapt(
        optimizer_checks.OPTIMIZER_CLASS,
        "optimizer.type",
        f"remove the section `optimizer`, or give `deepspeed.initialize` no optimizer; {_SAME_FILE}",
        _is_always_stated,
    ),
    _adapt(
        optimizer_checks.OPTIMIZER_DEVICE,
        "zero_optimization.offload_optimizer.device",
        "`nvme` needs ZeRO stage 3, `cpu` stage 1 or more; set `device` explicitly",
        _is_always_stated,
    ),
    _adapt(
        parameter_checks.PARAMETER_DEVICE,
        "zero_optimization.offload_param.device",
        "parameters are offloaded at ZeRO stage 3 only",
        _is_always_stated,
    ),
    _adapt(
        replace(parameter_checks.ENGINE_DTYPES, observe=_observe_dtypes),
        "bf16.enabled",
        "switch the format on by `true`, a boolean",
        _is_always_stated,
    ),
    _adapt(
        setting_checks.GRADIENT_CLIPPING,
        "gradient_clipping",
        f"write `gradient_clipping` as a number of 0 or more, and {_SAME_FILE}",
        lambda expected: expected.gradient_clipping is not None,
    ),
    _adapt(
        replace(setting_checks.ENGINE_BATCH_SIZES, observe=_observe_batch_sizes),
        "train_micro_batch_size_per_gpu",
        f"write whole numbers whose product with the ranks is `train_batch_size`, and {_SAME_FILE}",
        lambda e: any((e.micro_batch_size, e.gradient_accumulation_steps, e.global_batch_size)),
    ),
    replace(parameter_checks.PARTITIONS, key="zero_optimization.stage", observe=_observe_groups),
    _adapt(
        replace(optimizer_checks.OPTIMIZER_SETTINGS, observe=_observe_settings),
        "optimizer.params",
        _SAME_FILE,
        lambda expected: bool(expected.optimizer_params),
    ),
    _adapt(
        setting_checks.NVME_FILES,
        "zero_optimization.offload_optimizer.nvme_path",
        setting_checks.NVME_FILES.fix,
        lambda expected: bool(expected.nvme_paths),
    ),
    replace(  # a size that is plausible for every loss is not known here
        step_checks.GRADIENT_NORM,
        key="",
        evaluate=lambda _, rank_values: step_checks.check_finite_norms(rank_values),
        fix="lower the learning rate, and check the data",
    ),
    replace(step_checks.SKIPPED_STEPS, key="fp16", fix="use bf16, or a lower `fp16.initial_scale_power`"),
    replace(REPLICAS, key="", observe=_observe_replicas, evaluate=_evaluate_replicas),
    source_weights.CHECK,
)
"""In the order of their ids."""


def expected_settings_of_json(config: Mapping[str, Any], world_size: int) -> ExpectedSettings:
    """The expected settings of an engine with this JSON on `world_size` ranks. `"auto"` leaves a setting open."""

    def get(path: str) -> Any:
        value: Any = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value == "auto" else value

    precision = next((key for key in ("bf16", "bfloat16", "fp16") if get(f"{key}.enabled") is True), "fp32")
    offloads = {kind: get(f"zero_optimization.offload_{kind}") or {} for kind in ("optimizer", "param")}
    places = {kind: block if isinstance(block, Mapping) else {} for kind, block in offloads.items()}
    optimizer = get("optimizer.type")
    autocast = get("torch_autocast.enabled") is True
    return ExpectedSettings(
        zero_stage=_number(get("zero_optimization.stage") if get("zero_optimization") is not None else 0),
        offload_optimizer=str(places["optimizer"].get("device") or "none"),
        offload_param=str(places["param"].get("device") or "none"),
        offload_ratio=float(_number(places["optimizer"].get("ratio")) or 1.0),
        nvme_paths=tuple(
            str(p["nvme_path"]) for p in places.values() if p.get("device") == "nvme" and p.get("nvme_path")
        ),
        dtype=TORCH_DTYPES[precision],
        master_dtype=TORCH_DTYPES[precision] if _has_low_precision_masters(get, precision) else "float32",
        accumulation_dtype=torch_dtype_name(get("data_types.grad_accum_dtype")),
        communication_dtype=torch_dtype_name(get("communication_data_type")),
        autocast_dtype=(torch_dtype_name(get("torch_autocast.dtype")) or "any") if autocast else None,
        gradient_clipping=_number(get("gradient_clipping")),
        micro_batch_size=_number(get("train_micro_batch_size_per_gpu")),
        gradient_accumulation_steps=_number(get("gradient_accumulation_steps")),
        global_batch_size=_number(get("train_batch_size")),
        optimizer=optimizer.lower() if isinstance(optimizer, str) else "",
        optimizer_params=get("optimizer.params") or {},
        scheduler=None,
        ds_scheduler=get("scheduler"),
        parallel_dims=ParallelDims(world_size, 1, 1, 1),
        hpz_partition_size=1,
        expert_parallel_size=1,
        compile_enabled=False,
        is_random_init=False,
        seed=0,
        uses_accelerators=None,
    )


def _has_low_precision_masters(get: Any, precision: str) -> bool:
    return any(get(f"{precision}.{name}_master_weights_and_grads") is True for name in ("bf16", "fp16"))


def _number(value: Any) -> Any:
    """None for what is no number: DeepSpeed reads it in a way of its own."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
