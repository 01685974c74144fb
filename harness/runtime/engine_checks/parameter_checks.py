# SPDX-License-Identifier: Apache-2.0
"""Engine checks of parameters: device, number formats, initial values, and the partition of what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    NotApplicable,
    check_equal,
    check_failed,
    check_passed,
    engine_check,
    format_value,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import (
    WeightStats,
    compute_model_stats,
    local_checksums,
    master_weights,
    name_of_dtype,
    numel_of,
    parameter_groups_of,
)
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.engine_checks.weight_checksums import combine_checksums
from harness.runtime.models.quantized_base import quantized_layers


def _observe_parameter_device(observations: Observations) -> Any:
    optimizer = observations.engine.optimizer
    if getattr(optimizer, "params_in_nvme_and_cpu", False):
        return "nvme"
    return "cpu" if getattr(optimizer, "offload_param", False) else "none"


PARAMETER_DEVICE = engine_check(
    "AT004",
    _observe_parameter_device,
    lambda expected, values: check_equal(expected.offload_param, values, "the device of offloaded parameters"),
)


def _observe_engine_dtypes(observations: Observations) -> Any:
    engine, optimizer = observations.engine, observations.engine.optimizer
    counts: Counter[str] = Counter()
    in_4_bits = {id(layer.weight) for layer in quantized_layers(engine.module)}
    for parameter in engine.module.parameters():
        if id(parameter) in in_4_bits:
            continue
        counts[name_of_dtype(parameter.dtype)] += numel_of(parameter)
    has_autocast = hasattr(type(engine), "torch_autocast_enabled")  # from 0.17.2 on
    autocast = (
        _dtype_name_or_none(engine.torch_autocast_dtype()) or "any"
        if has_autocast and engine.torch_autocast_enabled()
        else None
    )
    return {
        "weights": dict(counts),
        "masters": sorted({name_of_dtype(m.dtype) for m in master_weights(engine) if m.numel()}),
        "accumulation": _dtype_name_or_none(getattr(optimizer, "gradient_accumulation_dtype", None)),
        "communication": _dtype_name_or_none(engine.communication_data_type),
        "autocast": autocast,
    }


def _dtype_name_or_none(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else name_of_dtype(dtype)


def _evaluate_engine_dtypes(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    counts: Counter[str] = Counter()
    for values in rank_values:
        counts.update(values["weights"])
    main_dtype = max(counts, key=lambda name: counts[name])
    if main_dtype != expected.dtype or set(counts) - {expected.dtype, "float32"}:  # some are kept in fp32 on purpose
        return check_failed(
            f"weights are in {format_value(list(counts))}, most should be in {format_value(expected.dtype)}",
            dict(counts),
        )
    for values in rank_values:
        difference = _find_engine_dtypes_difference(expected, values)
        if difference:
            return check_failed(difference, values)
    return check_passed(rank_values[0])


def _find_engine_dtypes_difference(expected: ExpectedSettings, values: dict[str, Any]) -> str:
    if values["masters"] and expected.master_dtype not in values["masters"]:
        formats, master_dtype = format_value(values["masters"]), format_value(expected.master_dtype)
        return f"master weights are in {formats}, should be in {master_dtype}"
    for name, dtype in (("accumulation", expected.accumulation_dtype), ("communication", expected.communication_dtype)):
        if dtype is not None and values[name] not in (None, dtype):
            return f"gradients' {name} is in {format_value(values[name])}, should be in {format_value(dtype)}"
    autocast, dtype = values["autocast"], expected.autocast_dtype
    if autocast == dtype or (autocast and dtype and "any" in (autocast, dtype)):
        return ""
    return f"`torch_autocast` is {format_value(autocast)}, should be {format_value(dtype)}"


ENGINE_DTYPES = engine_check("AT005", _observe_engine_dtypes, _evaluate_engine_dtypes)


def _observe_initial_weights(observations: Observations) -> Any:
    names = [name for name, record in observations.initial_weights.items() if record.checksums]
    if not names:
        raise NotApplicable("all weights are on NVMe")
    changed_names, num_compared = [], 0
    parts: dict[str, dict[str, Any]] = {"tensor": {}, "zero": {}}
    for name, (dtype, is_cut, after) in local_checksums(observations.engine, observations.parameters, names).items():
        record = observations.initial_weights[name]
        before = (record.checksums or {}).get(dtype)
        if before is None:
            continue
        num_compared += 1
        if is_cut:
            parts["tensor"][name] = [list(before), list(after)]
        elif hasattr(observations.parameters[name], "ds_tensor") and not record.is_sharded:
            # Such as adapters, which are created whole on every rank.
            parts["zero"][name] = [list(before), list(after)]
        elif before != after:
            changed_names.append(name)
    return {"other": changed_names[:5], "looked": num_compared, **parts}


def _evaluate_initial_weights(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    for rank, values in enumerate(rank_values):
        if values["other"]:
            return _changed_result(values["other"], rank)
    for kind in ("tensor", "zero"):
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(len(rank_values)):
            topology = expected.dims_of_rank(rank)
            tensor_group = topology.data_parallel_rank, topology.sequence_parallel_rank
            others = tensor_group if kind == "tensor" else (topology.tensor_parallel_rank,)
            groups.setdefault((topology.pipeline_stage, *others), []).append(rank)
        for ranks in groups.values():
            parts = [rank_values[rank][kind] for rank in ranks]
            changed_names = [
                n for n, (before, _) in parts[0].items() if combine_checksums(p[n][1] for p in parts) != tuple(before)
            ]
            if changed_names:
                return _changed_result(changed_names, ranks[0])
    if not any(values["looked"] for values in rank_values):
        return CheckResult("skipped", "no weight could be read")
    return check_passed({"weights": rank_values[0]["looked"]})


def _changed_result(names: Sequence[str], rank: int) -> CheckResult:
    return check_failed(
        f"{len(names)} or more weights were changed by `deepspeed.initialize`, such as `{names[0]}` (rank {rank})",
        list(names),
        "a pretrained model would be lost, and a new one start from other numbers than those of its seed",
    )


INITIAL_WEIGHTS = engine_check("AT011", _observe_initial_weights, _evaluate_initial_weights)


_MAX_INIT_SPREAD_RATIO, _MIN_ELEMENTS = 2.0, 2048


def _observe_init_spread(observations: Observations) -> Any:
    if not observations.expected.is_random_init:
        raise NotApplicable("the weights are not new")
    if not observations.init_stats:
        raise NotApplicable("the model has no known initialisation")
    return {
        "is": compute_model_stats(observations.engine.module),
        "should": {name: s.std for name, s in observations.init_stats.items()},
    }


def _evaluate_init_spread(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:  # noqa: ARG001
    details = {}
    for kind, expected_std in rank_values[0]["should"].items():
        parts = [values["is"][kind] for values in rank_values if kind in values["is"]]
        stats = WeightStats(*(sum(column) for column in zip(*parts, strict=True))) if parts else None
        if stats is None or stats.count < _MIN_ELEMENTS or not expected_std:
            continue
        details[kind] = {"deviation": round(stats.std, 6), "should": round(expected_std, 6)}
        if not expected_std / _MAX_INIT_SPREAD_RATIO <= stats.std <= expected_std * _MAX_INIT_SPREAD_RATIO:
            return check_failed(
                f"new weights of `{kind}` have a standard deviation of {stats.std:.4g}, the model's own"
                f" initialisation gives {expected_std:.4g}",
                details,
            )
    return check_passed(details) if details else CheckResult("skipped", "too few weights to decide")


INIT_SPREAD = engine_check("AT012", _observe_init_spread, _evaluate_init_spread)


def _observe_partitions(observations: Observations) -> Any:
    parameters = observations.parameters
    num_groups = Counter(id(p) for group in parameter_groups_of(observations.engine.optimizer) for p in group)
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    # a tensor rank beyond the key-value heads has empty shards of attention, which no group needs
    ungrouped = [name for name, p in trainable.items() if num_groups[id(p)] != 1 and numel_of(p)]
    frozen = [name for name, p in parameters.items() if not p.requires_grad and num_groups[id(p)]]
    trainable_before = {name for name, record in observations.initial_weights.items() if record.is_trainable}
    is_swapped = bool(getattr(observations.engine.optimizer, "swap_optimizer", False))
    has_experts = any(getattr(p, "allreduce", True) is False for p in trainable.values())
    return {
        "missing": ungrouped[:3],
        "frozen": frozen[:3],
        "other": sorted(set(trainable) ^ (trainable_before & set(parameters)))[:3],
        "trained": sum(numel_of(p) for p in trainable.values()),
        "held": None if is_swapped or has_experts else sum(m.numel() for m in master_weights(observations.engine)),
        "parameters": len(trainable),
    }


def _evaluate_partitions(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    for rank, values in enumerate(rank_values):
        if values["missing"]:
            return check_failed(
                f"`{values['missing'][0]}` is trained, but is not in exactly one group of the optimizer on rank {rank}",
                values,
            )
        if values["frozen"]:
            return check_failed(f"`{values['frozen'][0]}` is frozen, and the optimizer of rank {rank} has it", values)
        if values["other"]:
            return check_failed(
                f"`{values['other'][0]}` was trainable before the engine was built and is not now,"
                " or the other way round",
                values,
            )
    return _evaluate_partition_sizes(expected, rank_values)


def _evaluate_partition_sizes(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    """Compare the shards of all ranks that share a replica with its size. Padding makes them a little larger."""
    details = {"trained": rank_values[0]["trained"], "held": rank_values[0]["held"]}
    if any(values["held"] is None for values in rank_values) or expected.zero_stage not in (0, 1, 2, 3):
        return check_passed(details)
    ranks_by_replica: dict[tuple[int, int], list[Any]] = {}
    for rank, values in enumerate(rank_values):
        topology = expected.dims_of_rank(rank)
        ranks_by_replica.setdefault((topology.tensor_parallel_rank, topology.pipeline_stage), []).append(values)
    for (tensor, stage), ranks in ranks_by_replica.items():
        held_numel = sum(values["held"] for values in ranks)
        numel = ranks[0]["trained"] * (len(ranks) if expected.zero_stage == 0 else 1)
        # Each parameter of stage 3 is padded to a multiple of the ranks, each group of stages 1 and 2 to more.
        padding = 0
        if expected.zero_stage:
            padding = len(ranks) * (ranks[0]["parameters"] if expected.zero_stage == 3 else 4096)
        if not numel <= held_numel <= numel + padding:
            part = f" (tensor rank {tensor}, pipeline stage {stage})" if len(ranks_by_replica) > 1 else ""
            return check_failed(
                f"the optimizers of {len(ranks)} ranks hold {held_numel:,} elements, should hold {numel:,}{part}",
                details,
            )
    return check_passed(details)


PARTITIONS = engine_check("AT010", _observe_partitions, _evaluate_partitions)
