# SPDX-License-Identifier: Apache-2.0
"""A run on live CPU ranks next to the simulation of the same run: bytes of states and of the files of its checkpoint, and
collectives in their order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
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
    """One rank. `messages`: collectives that were compared; `named`: those whose bytes were left out, by place;
    `files`: bytes of the tensors of each file that it writes, and of the file; `read`: of those that a resume reads.
    """

    rank: int
    states: dict[str, int]
    messages: int
    named: tuple[str, ...]
    files: dict[str, tuple[int, int]]
    differences: tuple[str, ...]
    read: dict[str, tuple[int, int]] = field(default_factory=dict)


def compare_case(case: SimulatedCase, folder: Path, live: ForkedRanks, simulated: ForkedRanks) -> list[RankComparison]:
    """Train, save, resume and simulate a case, and compare every rank: first its training and its save, then its
    resume. Fails the test where a side failed.
    """
    run_dir, request = write_case(case, folder)
    trained = _run_side("live", live, "record_collectives.py", case, folder, run_dir)
    checkpoint = next(path for path in (run_dir / "checkpoints").iterdir() if path.name.startswith("step-"))
    resumed = _run_side("resumed", live, "record_collectives.py", case, folder, run_dir, checkpoint)
    answers = _run_side("simulated", simulated, "simulate.py", case, folder, request)
    comparisons = []
    for rank, (first, second, answer) in enumerate(zip(trained, resumed, answers, strict=True)):
        details = answer["checkpoint"]["details"]
        for name in details["stand_ins"]:  # whose bytes one rank cannot know
            del details["read"][name], second["files"][name]
        training, loading = (
            compare_rank(rank, side, {**counted, "files": files})
            for side, counted, files in (
                (first, answer, details["written"]),
                (second, {**answer, **details}, details["read"]),
            )
        )
        differences = training.differences + tuple(f"resume: {text}" for text in loading.differences)
        named = (*training.named, *(f"read of {name}" for name in details["stand_ins"]))
        comparisons.append(replace(training, read=loading.files, named=named, differences=differences))
    return comparisons


def _run_side(
    name: str, ranks: ForkedRanks, job: str, case: SimulatedCase, folder: Path, *sources: Path
) -> list[dict[str, Any]]:
    out = folder / name
    out.mkdir()
    source, *more = map(str, sources)
    ranks.run(JOBS / job, source, str(out), *more, ranks=case.ranks)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(case.ranks)]


def compare_rank(rank: int, live: dict[str, Any], simulated: dict[str, Any]) -> RankComparison:
    """The states and the tensors of each file to the byte, and the collectives one by one."""
    differences = [
        f"{name}: {live['states'].get(name, 0):,} bytes live, {simulated['states'].get(name, 0):,} simulated"
        for name in sorted({*live["states"], *simulated["states"]})
        if live["states"].get(name) != simulated["states"].get(name)
    ]
    files, counted = live["files"], simulated["files"]
    differences += [
        f"{name}: {files.get(name, (0, 0))[0]:,} bytes of tensors live, {counted.get(name, 0):,} simulated"
        for name in sorted({*files, *counted})
        if name not in files or files[name][0] != counted.get(name)
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
    return RankComparison(rank, live["states"], len(first), named, files, tuple(differences))


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
