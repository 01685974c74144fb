"""AT009: weights that shrank under tensor parallelism, and none that shrank without."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen
from harness.runtime.attest.weights import shape_of


def _look(seen: Seen) -> Any:
    now = {name: shape_of(p) for name, p in seen.named.items()}
    both = [(name, noted.shape, now[name]) for name, noted in seen.origin.items() if name in now]
    if not both:
        raise NotApplicable("no weight has the name that it had before")
    other = [name for name, was, has in both if was != has]
    shrunk = [prod(was) - prod(has) for name, was, has in both if was != has]
    return {
        "changed": len(other),
        "first": other[0] if other else "",
        "less": sum(shrunk),
        "of": sum(prod(w) for _, w, _ in both),
    }


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    share = 1 - found[0]["less"] / max(1, found[0]["of"])
    if asked.degrees.tensor == 1:
        for rank, has in enumerate(found):
            if has["changed"]:
                return differs(f"the shape of `{has['first']}` has changed on rank {rank}, and nothing cuts it", has)
        return holds({"share": 1.0})
    for rank, has in enumerate(found):
        if has["less"] <= 0:
            return differs(
                f"no weight is cut on rank {rank}: the tensor ranks repeat each other's work",
                has,
                "a preset or pattern of `tensor_parallel` matches no layer of the model",
            )
    return holds({"cut": found[0]["changed"], "share": round(share, 4)})


CLAIM = Claim(
    id="AT009",
    name="nothing-cut",
    question="does each tensor rank hold a part of the layers?",
    moment="built",
    look=_look,
    judge=_judge,
    key="parallel.tensor_parallel_size",
    gates=("TP009", "TP015"),
    fix="take `deepspeed.tensor_parallel.preset_model` and `partition_config` out, or name the model's own layers",
)
