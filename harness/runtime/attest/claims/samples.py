"""AT025: ranks that share a sample see the same one, and others see others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    if seen.drawn is None:
        raise NotApplicable("nothing was drawn")
    return seen.drawn


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    groups: dict[int, int] = {}
    owners: dict[int, int] = {}
    for rank, has in enumerate(found):
        group = asked.place(rank).data_rank
        first = groups.setdefault(group, rank)
        if found[first]["digest"] != has["digest"]:
            return differs(
                f"ranks {first} and {rank} share a micro-batch, and see other tokens in step {has['step']}", has["step"]
            )
        for row in has["rows"] if first == rank else ():
            other = owners.setdefault(row, rank)
            if other != rank:
                return differs(f"ranks {other} and {rank} both train on row {row} in step {has['step']}", has["step"])
    return holds({"rows": len(owners), "groups": len(groups)})


CLAIM = Claim(
    id="AT025",
    name="samples-shared-wrongly",
    question="do ranks of a tensor, pipeline or sequence group see the same samples, and other data ranks others?",
    moment="steps",
    look=_look,
    judge=_judge,
    key="parallel",
    fix="draw by the data-parallel rank, not by the rank in the world",
)
