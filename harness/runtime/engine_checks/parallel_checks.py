# SPDX-License-Identifier: Apache-2.0
"""Engine checks of ranks among each other: degrees, tensor shards, experts, equal replicas."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.utils import groups

from harness.runtime import engine_protocol
from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    NotApplicable,
    check_equal,
    check_failed,
    check_passed,
    engine_check,
    format_ranks,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import (
    local_checksums,
    select_names,
    shape_of,
    stage_partition,
    tp_layouts_of,
)
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.engine_checks.weight_checksums import MAX_ELEMENTS


def _observe_parallel_degrees(observations: Observations) -> Any:
    engine = observations.engine
    is_pipeline = isinstance(engine, PipelineEngine)
    sequence_group = None if is_pipeline else vars(engine).get("seq_parallel_group")
    sequence_size = 1 if sequence_group is None else dist.get_world_size(sequence_group)
    hpz_group = getattr(getattr(engine.optimizer, "parameter_offload", None), "zero_param_parallel_group", None)
    uses_hpz = observations.expected.hpz_partition_size > 1 and hpz_group is not None
    return {
        "data": int(engine.dp_world_size) if sequence_size == 1 else int(engine.seq_dp_world_size) // sequence_size,
        "tensor": _tensor_degree(engine),
        "pipeline": int(cast("engine_protocol.PipelineEngine", engine).num_stages) if is_pipeline else 1,
        "sequence": sequence_size,
        "zero_hpz": dist.get_world_size(hpz_group) if uses_hpz else 1,
    }


def _tensor_degree(engine: engine_protocol.Engine) -> int:
    if isinstance(engine, PipelineEngine):
        return int(engine.grid.get_tensor_model_parallel_world_size())
    return 1 if engine.autotp_size() < 2 else int(groups.get_tensor_model_parallel_world_size())


def _evaluate_parallel_degrees(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    dims = expected.parallel_dims
    degrees = {
        "data": dims.data,
        "tensor": dims.tensor,
        "pipeline": dims.pipeline,
        "sequence": dims.sequence,
        "zero_hpz": max(1, expected.hpz_partition_size),
    }
    for name, value in degrees.items():
        ranks = [rank for rank, values in enumerate(rank_values) if values[name] != value]
        if ranks:
            size = rank_values[ranks[0]][name]
            unit = "ranks in a secondary partition" if name == "zero_hpz" else f"{name}-parallel ranks"
            return check_failed(
                f"there are {size} {unit}, should be {value}{format_ranks(ranks, len(rank_values))}", size
            )
    return check_passed(rank_values[0])


PARALLEL_DEGREES = engine_check("AT008", _observe_parallel_degrees, _evaluate_parallel_degrees)


def _observe_tensor_shards(observations: Observations) -> Any:
    shapes = {name: shape_of(p) for name, p in observations.parameters.items()}
    pairs = [
        (name, _whole_shape(observations, name, record.shape), shapes[name])
        for name, record in observations.initial_weights.items()
        if name in shapes
    ]
    if not pairs:
        raise NotApplicable("no weight has the name that it had before")
    changed_names = [name for name, before, after in pairs if before != after]
    lost_elements = [prod(before) - prod(after) for name, before, after in pairs if before != after]
    return {
        "changed": len(changed_names),
        "first": changed_names[0] if changed_names else "",
        "less": sum(lost_elements),
        "of": sum(prod(before) for _, before, _ in pairs),
    }


def _whole_shape(observations: Observations, name: str, initial_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape before the weight was sharded: a pipeline shards before `deepspeed.initialize`."""
    partition = stage_partition(observations.engine, name)
    return initial_shape if partition is None else partition.shape


def _evaluate_tensor_shards(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    share = 1 - rank_values[0]["less"] / max(1, rank_values[0]["of"])
    if expected.parallel_dims.tensor == 1:
        for rank, values in enumerate(rank_values):
            if values["changed"]:
                return check_failed(
                    f"the shape of `{values['first']}` has changed on rank {rank} without tensor parallelism", values
                )
        return check_passed({"share": 1.0})
    for rank, values in enumerate(rank_values):
        if values["less"] <= 0:
            return check_failed(
                f"no weight is sharded on rank {rank}: the tensor ranks repeat each other's work",
                values,
                "a preset or pattern of `tensor_parallel` matches no layer of the model",
            )
    return check_passed({"cut": rank_values[0]["changed"], "share": round(share, 4)})


TENSOR_SHARDS = engine_check("AT009", _observe_tensor_shards, _evaluate_tensor_shards)


def _observe_expert_parallel(observations: Observations) -> Any:
    if observations.expected.expert_parallel_size < 2:
        raise NotApplicable("the spec has no expert parallelism")
    from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer

    sizes = [int(m.ep_size) for m in observations.engine.module.modules() if isinstance(m, AutoEPMoELayer)]
    return min(sizes, default=1)


EXPERT_PARALLEL = engine_check(
    "AT016",
    _observe_expert_parallel,
    lambda expected, values: check_equal(
        expected.expert_parallel_size, values, "the number of ranks that share a layer's experts"
    ),
)


_REPLICAS_TOLERANCE = 1e-4
"""On a device, of replicas that each tensor rank steps by itself: the order of its additions is not fixed there."""


def _observe_replicas(observations: Observations) -> Any:
    engine, topology = observations.engine, observations.parallel_dims
    if topology.world_size // topology.pipeline_parallel_size < 2:
        raise NotApplicable("no parameter is replicated")
    if engine.zero_optimization_stage() == 3:
        raise NotApplicable("at stage 3 every rank has other shards")
    named_parameters = [
        (n, p) for n, p in observations.parameters.items() if getattr(p, "allreduce", True) is not False
    ]
    # Each comparison starts at another weight, until all had their turn.
    start = (observations.replica_comparisons * 61) % max(1, len(named_parameters))
    names = select_names(named_parameters[start:] + named_parameters[:start])
    layouts, parameters = tp_layouts_of(engine, names), dict(named_parameters)
    is_exact = parameters[names[0]].device.type == "cpu" if names else True
    checksums = {}
    for name, (_, is_cut, sums) in local_checksums(engine, observations.parameters, names).items():
        if name in layouts and not is_cut:
            continue
        is_shard = is_cut or stage_partition(engine, name) is not None
        checksums[name] = [*sums, is_shard, 0.0 if is_exact or is_shard else _norm_of(parameters[name])]
    return {"exact": is_exact, "weights": checksums}


def _norm_of(parameter: torch.Tensor) -> float:
    return float(parameter.detach().reshape(-1)[:MAX_ELEMENTS].double().norm())


def _evaluate_replicas(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    first: dict[tuple[int, int], tuple[int, Any]] = {}
    for rank, observation in enumerate(rank_values):
        topology = expected.dims_of_rank(rank)
        key = topology.pipeline_stage, topology.tensor_parallel_rank
        other_rank, reference = first.setdefault(key, (rank, observation))
        for name, checksums in observation["weights"].items():
            if checksums[:2] != reference["weights"].get(name, checksums)[:2]:
                return drift_result(name, other_rank, rank)
        other_rank, reference = first[(topology.pipeline_stage, 0)]
        for name, checksums in observation["weights"].items():
            other = reference["weights"].get(name, checksums)
            if not checksums[2] and not _is_same(checksums, other, exact=observation["exact"]):
                return drift_result(name, other_rank, rank)
    return check_passed({"weights": len(rank_values[0]["weights"])})


def _is_same(mine: Sequence[Any], other: Sequence[Any], *, exact: bool) -> bool:
    if list(mine[:2]) == list(other[:2]):
        return True
    return not exact and abs(mine[3] - other[3]) <= _REPLICAS_TOLERANCE * max(abs(other[3]), 1e-12)


def drift_result(name: str, other: int, rank: int) -> CheckResult:
    """A replica of weight `name` differs between two ranks."""
    return check_failed(
        f"`{name}` differs between ranks {other} and {rank}, which both have it",
        name,
        "gradients are not reduced over all its replicas, or the ranks see other data",
    )


REPLICAS = engine_check("AT026", _observe_replicas, _evaluate_replicas)
