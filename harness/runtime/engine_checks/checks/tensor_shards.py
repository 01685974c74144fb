"""AT009: weights that shrank under tensor parallelism, and none that shrank without."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import shape_of
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    now = {name: shape_of(p) for name, p in seen.parameters.items()}
    both = [(name, noted.shape, now[name]) for name, noted in seen.initial_weights.items() if name in now]
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


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    share = 1 - found[0]["less"] / max(1, found[0]["of"])
    if asked.parallel_dims.tensor == 1:
        for rank, has in enumerate(found):
            if has["changed"]:
                return check_failed(
                    f"the shape of `{has['first']}` has changed on rank {rank}, and nothing cuts it", has
                )
        return check_passed({"share": 1.0})
    for rank, has in enumerate(found):
        if has["less"] <= 0:
            return check_failed(
                f"no weight is cut on rank {rank}: the tensor ranks repeat each other's work",
                has,
                "a preset or pattern of `tensor_parallel` matches no layer of the model",
            )
    return check_passed({"cut": found[0]["changed"], "share": round(share, 4)})


CHECK = EngineCheck(
    id="AT009",
    name="nothing-cut",
    question="does each tensor rank hold a part of the layers?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="parallel.tensor_parallel_size",
    gates=("TP009", "TP015"),
    fix="take `deepspeed.tensor_parallel.preset_model` and `partition_config` out, or name the model's own layers",
)
