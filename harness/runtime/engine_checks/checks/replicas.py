"""AT026: what several ranks hold alike is alike, at the first step and later."""

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
from harness.runtime.engine_checks.model_weights import local_checksums, select_names, tp_layouts_of
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.engine_checks.weight_checksums import MAX_ELEMENTS

_TOLERANCE = 1e-4
"""On a device, of replicas that each tensor rank steps by itself: the order of its additions is not fixed there."""


def _observe(seen: Observations) -> Any:
    engine, place = seen.engine, seen.parallel_dims
    if place.world_size // place.pipeline_parallel_size < 2:
        raise NotApplicable("no rank holds what another holds")
    if engine.zero_optimization_stage() == 3:
        raise NotApplicable("at stage 3 every rank holds other shards")
    named = [(n, p) for n, p in seen.parameters.items() if getattr(p, "allreduce", True) is not False]
    begin = (seen.replica_comparisons * 61) % max(1, len(named))  # each time others, until all had their turn
    names = select_names(named[begin:] + named[:begin])
    cut, parameters = tp_layouts_of(engine, names), dict(named)
    exact = parameters[names[0]].device.type == "cpu" if names else True
    found = {}
    for name, (_, is_cut, sums) in local_checksums(engine, seen.parameters, names).items():
        if name in cut and not is_cut:
            continue
        found[name] = [*sums, is_cut, 0.0 if exact or is_cut else _norm_of(parameters[name])]
    return {"exact": exact, "weights": found}


def _norm_of(parameter: torch.Tensor) -> float:
    return float(parameter.detach().reshape(-1)[:MAX_ELEMENTS].double().norm())


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    first: dict[tuple[int, int], tuple[int, Any]] = {}
    for rank, has in enumerate(found):
        place = asked.dims_of_rank(rank)
        other, alike = first.setdefault((place.pipeline_stage, place.tensor_parallel_rank), (rank, has))
        for name, values in has["weights"].items():
            if values[:2] != alike["weights"].get(name, values)[:2]:
                return _drift_result(name, other, rank)
        other, alike = first[(place.pipeline_stage, 0)]
        for name, values in has["weights"].items():
            if not values[2] and not _is_same(values, alike["weights"].get(name, values), exact=has["exact"]):
                return _drift_result(name, other, rank)
    return check_passed({"weights": len(found[0]["weights"])})


def _is_same(mine: Sequence[Any], other: Sequence[Any], *, exact: bool) -> bool:
    if list(mine[:2]) == list(other[:2]):
        return True
    return not exact and abs(mine[3] - other[3]) <= _TOLERANCE * max(abs(other[3]), 1e-12)


def _drift_result(name: str, other: int, rank: int) -> CheckResult:
    return check_failed(
        f"`{name}` is not the same on ranks {other} and {rank}, which both hold it",
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
    fix="go on from a checkpoint that was saved before, and report it with `engine_checks.json`",
)
