# SPDX-License-Identifier: Apache-2.0
"""The differences that all ranks saw, in one order: one for each kind and cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from harness.engine_witness.update_comparison import LocalDifference
from harness.engine_witness.witness_result import Difference, DifferenceKind

LOSS = "loss"
"""In place of a parameter's name: the factor with which the gradient of the loss is multiplied."""


Answer = tuple[list[LocalDifference], dict[str, tuple[bool, bool]], bool]
"""Of one rank: what differs; by parameter, whether its own contribution is missing, and whether it alone is there; was
its gradient clipped to the norm of its own shard?
"""


def merge_differences(gathered: Sequence[Answer], step: int) -> list[Difference]:
    """One difference for each kind and cause, the one that differs most first."""
    seen: dict[tuple[str, str], tuple[int, LocalDifference]] = {}
    for rank, (differences, _, _) in enumerate(gathered):
        for difference in differences:
            seen.setdefault((difference.kind, difference.parameter), (rank, difference))
    if any(kind == "gradient" and parameter != LOSS for kind, parameter in seen):
        seen.pop(("gradient", LOSS), None)
    groups: dict[tuple[DifferenceKind, str], list[tuple[int, LocalDifference]]] = {}
    for rank, difference in seen.values():
        cause, detail = difference.cause, difference.detail
        if difference.kind == "gradient" and cause in ("unknown", "scaled"):
            cause, detail = _cause_over_ranks(difference, gathered)
        groups.setdefault((difference.kind, cause), []).append((rank, replace(difference, detail=detail)))
    order = {"gradient": 0, "update": 1, "weights": 2}
    result = []
    for (kind, cause), members in groups.items():
        rank, worst = max(members, key=lambda member: member[1].relative)
        result.append(
            Difference(
                step,
                kind,
                worst.parameter,
                rank,
                worst.expected,
                worst.found,
                worst.relative,
                cause,
                worst.detail,
                len(members),
            )
        )
    return sorted(result, key=lambda d: (order[d.kind], d.cause == "unknown", -d.num_parameters))


def _cause_over_ranks(difference: LocalDifference, gathered: Sequence[Answer]) -> tuple[str, str]:
    """Is the contribution of one rank missing, or has each rank stepped with its own, or clipped it alone?"""
    if difference.cause == "scaled" and all(is_clipped_alone for _, _, is_clipped_alone in gathered):
        return "clip-norm", "each rank clipped its own shard"
    answers = [own.get(difference.parameter) for _, own, _ in gathered]
    missing = [rank for rank, answer in enumerate(answers) if answer is not None and answer[0]]
    if missing and len(missing) < len(gathered):
        return "rank-left-out", f"rank {missing[0]}"
    if answers and all(answer is None or answer[1] for answer in answers) and any(answers):
        return "not-reduced", ""
    return difference.cause, difference.detail


def relative_size(gap: float, norm: float) -> float:
    """Infinite for a difference from zero."""
    return gap / norm if norm > 0 else math.inf if gap else 0.0
