# SPDX-License-Identifier: Apache-2.0
"""A run on live CPU ranks next to the simulation of the same run: bytes of states, and collectives in their order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS
from tests.support.training.simulated_cases import SimulatedCase, write_case

OWN_MESSAGES = "harness/runtime/distributed.py"
"""Sends what the loop itself says: findings, flags, losses. The simulation has no loop, and leaves them out."""
NAMED_BYTES = {"broadcast_and_check": "deepspeed/runtime/engine.py:962 broadcast_and_check"}
"""Part of a caller's name -> where DeepSpeed 0.19.8 broadcasts pickled tensors, whose bytes are not simulated."""


@dataclass(frozen=True)
class RankComparison:
    """One rank. `messages`: collectives that were compared; `named`: those whose bytes were left out, by place."""

    rank: int
    states: dict[str, int]
    messages: int
    named: tuple[str, ...]
    differences: tuple[str, ...]


def compare_case(case: SimulatedCase, folder: Path, live: ForkedRanks, simulated: ForkedRanks) -> list[RankComparison]:
    """Train and simulate a case, and compare every rank. Fails the test where either side failed."""
    run_dir, request = write_case(case, folder)
    sides: list[list[dict[str, Any]]] = []
    for name, ranks, job, source in (
        ("live", live, "record_collectives.py", run_dir),
        ("simulated", simulated, "simulate.py", request),
    ):
        out = folder / name
        out.mkdir()
        ranks.run(JOBS / job, str(source), str(out), ranks=case.ranks)
        sides.append([json.loads((out / f"{rank}.json").read_text()) for rank in range(case.ranks)])
    return [compare_rank(rank, *pair) for rank, pair in enumerate(zip(*sides, strict=True))]


def compare_rank(rank: int, live: dict[str, Any], simulated: dict[str, Any]) -> RankComparison:
    """The states to the byte, and the collectives one by one."""
    differences = [
        f"{name}: {live['states'].get(name, 0):,} bytes live, {simulated['states'].get(name, 0):,} simulated"
        for name in sorted({*live["states"], *simulated["states"]})
        if live["states"].get(name) != simulated["states"].get(name)
    ]
    (first, named), (second, _) = _messages(live), _messages(simulated)
    if first != second:
        place = next(
            (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
        )
        differences.append(
            f"collective {place} of {len(first)} live and {len(second)} simulated:"
            f" {first[place : place + 1]} live, {second[place : place + 1]} simulated"
        )
    return RankComparison(rank, live["states"], len(first), named, tuple(differences))


def _messages(side: dict[str, Any]) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """(kind, bytes) of each, -1 bytes for those of `NAMED_BYTES`; and where those are."""
    messages, named = [], set()
    for (kind, size), caller in zip(side["collective_order"], side["collective_callers"], strict=True):
        if OWN_MESSAGES in caller:
            continue
        place = next((place for part, place in NAMED_BYTES.items() if part in caller), None)
        has_named_bytes = place is not None and kind == "broadcast"
        if has_named_bytes:
            named.add(place)
        messages.append((kind, -1 if has_named_bytes else size))
    return messages, tuple(sorted(named))
