"""AT024: skipped steps stop, or at least the loss scale falls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen

_IN_A_ROW = 8


def _look(seen: Seen) -> Any:
    if len(seen.steps) < _IN_A_ROW:
        raise NotApplicable(f"fewer than {_IN_A_ROW} steps")
    counts = [seen.skipped_before, *(taken.skipped for taken in seen.steps)]
    last = [b > a for a, b in pairwise(counts)][-_IN_A_ROW:]
    scales = [taken.scale for taken in seen.steps[-_IN_A_ROW:]]
    return {"all": all(last), "skipped": counts[-1] - counts[0], "scales": [scales[0], scales[-1]]}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:  # noqa: ARG001
    for has in found:
        first, last = has["scales"]
        if has["all"] and (first is None or last >= first):
            scale = "" if first is None else f", and the loss scale stays at {last:g}"
            return differs(f"each of the last {_IN_A_ROW} steps was skipped{scale}", has)
    return holds(found[0])


CLAIM = Claim(
    id="AT024",
    name="every-step-skipped",
    question="do skipped steps stop?",
    moment="steps",
    look=_look,
    judge=_judge,
    key="precision",
    gates=("PR012",),
    fix="use bf16, or a lower `precision.initial_scale_power`",
)
