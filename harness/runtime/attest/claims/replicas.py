"""AT026: what several ranks hold alike is alike, at the first step and later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen
from harness.runtime.attest.sums import MOST
from harness.runtime.attest.weights import chosen, cuts_of, held

_CLOSE = 1e-4
"""On a device, of replicas that each tensor rank steps by itself: the order of its additions is not fixed there."""


def _look(seen: Seen) -> Any:
    engine, place = seen.engine, seen.topology
    if place.world // place.pipeline_size < 2:
        raise NotApplicable("no rank holds what another holds")
    if engine.zero_optimization_stage() == 3:
        raise NotApplicable("at stage 3 every rank holds other shards")
    named = [(n, p) for n, p in seen.named.items() if getattr(p, "allreduce", True) is not False]
    begin = (seen.turn * 61) % max(1, len(named))  # each time others, until all had their turn
    names = chosen(named[begin:] + named[:begin])
    cut, parameters = cuts_of(engine, names), dict(named)
    exact = parameters[names[0]].device.type == "cpu" if names else True
    found = {}
    for name, (_, is_cut, sums) in held(engine, seen.named, names).items():
        if name in cut and not is_cut:
            continue
        found[name] = [*sums, is_cut, 0.0 if exact or is_cut else _length(parameters[name])]
    return {"exact": exact, "weights": found}


def _length(parameter: torch.Tensor) -> float:
    return float(parameter.detach().reshape(-1)[:MOST].double().norm())


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    first: dict[tuple[int, int], tuple[int, Any]] = {}
    for rank, has in enumerate(found):
        place = asked.place(rank)
        other, alike = first.setdefault((place.stage, place.tensor_rank), (rank, has))
        for name, values in has["weights"].items():
            if values[:2] != alike["weights"].get(name, values)[:2]:
                return _drift(name, other, rank)
        other, alike = first[(place.stage, 0)]
        for name, values in has["weights"].items():
            if not values[2] and not _same(values, alike["weights"].get(name, values), exact=has["exact"]):
                return _drift(name, other, rank)
    return holds({"weights": len(found[0]["weights"])})


def _same(mine: Sequence[Any], other: Sequence[Any], *, exact: bool) -> bool:
    if list(mine[:2]) == list(other[:2]):
        return True
    return not exact and abs(mine[3] - other[3]) <= _CLOSE * max(abs(other[3]), 1e-12)


def _drift(name: str, other: int, rank: int) -> Answer:
    return differs(
        f"`{name}` is not the same on ranks {other} and {rank}, which both hold it",
        name,
        "gradients are not reduced over all its replicas, or the ranks see other data",
    )


CLAIM = Claim(
    id="AT026",
    name="replicas-drift",
    question="are replicated parameters equal on all ranks that hold them?",
    moment="drift",
    look=_look,
    judge=_judge,
    key="parallel",
    gates=("TP010",),
    fix="go on from a checkpoint that was saved before, and report it with `attestation.json`",
)
