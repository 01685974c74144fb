# SPDX-License-Identifier: Apache-2.0
"""AT026: replicated parameters are equal, at the first step and later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import (
    local_checksums,
    select_names,
    stage_partition,
    tp_layouts_of,
)
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.engine_checks.weight_checksums import MAX_ELEMENTS

_TOLERANCE = 1e-4
"""On a device, of replicas that each tensor rank steps by itself: the order of its additions is not fixed there."""


def _observe(observations: Observations) -> Any:
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


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
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
    return not exact and abs(mine[3] - other[3]) <= _TOLERANCE * max(abs(other[3]), 1e-12)


def drift_result(name: str, other: int, rank: int) -> CheckResult:
    """A replica of weight `name` differs between two ranks."""
    return check_failed(
        f"`{name}` differs between ranks {other} and {rank}, which both have it",
        name,
        "gradients are not reduced over all its replicas, or the ranks see other data",
    )


CHECK = EngineCheck(
    id="AT026",
    name="replicas-drift",
    question="are replicated parameters equal on all ranks that hold them?",
    moment="drift",
    observe=_observe,
    evaluate=_evaluate,
    key="parallel",
    gates=("TP010",),
    fix="resume from an earlier checkpoint, and report it with `engine_checks.json`",
)
