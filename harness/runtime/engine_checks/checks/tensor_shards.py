# SPDX-License-Identifier: Apache-2.0
"""AT009: weights are cut under tensor parallelism, and only there."""

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
from harness.runtime.engine_checks.model_weights import shape_of, stage_partition
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    shapes = {name: shape_of(p) for name, p in observations.parameters.items()}
    pairs = [
        (name, _whole_shape(observations, name, record.shape), shapes[name])
        for name, record in observations.initial_weights.items()
        if name in shapes
    ]
    if not pairs:
        raise NotApplicable("no weight has the name that it had before")
    changed_names = [name for name, before, after in pairs if before != after]
    lost_elements = [prod(before) - prod(after) for name, before, after in pairs if before != after]
    return {
        "changed": len(changed_names),
        "first": changed_names[0] if changed_names else "",
        "less": sum(lost_elements),
        "of": sum(prod(before) for _, before, _ in pairs),
    }


def _whole_shape(observations: Observations, name: str, initial_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape before the weight was sharded: a pipeline shards before `deepspeed.initialize`."""
    partition = stage_partition(observations.engine, name)
    return initial_shape if partition is None else partition.shape


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    share = 1 - rank_values[0]["less"] / max(1, rank_values[0]["of"])
    if expected.parallel_dims.tensor == 1:
        for rank, values in enumerate(rank_values):
            if values["changed"]:
                return check_failed(
                    f"the shape of `{values['first']}` has changed on rank {rank} without tensor parallelism", values
                )
        return check_passed({"share": 1.0})
    for rank, values in enumerate(rank_values):
        if values["less"] <= 0:
            return check_failed(
                f"no weight is sharded on rank {rank}: the tensor ranks repeat each other's work",
                values,
                "a preset or pattern of `tensor_parallel` matches no layer of the model",
            )
    return check_passed({"cut": rank_values[0]["changed"], "share": round(share, 4)})


CHECK = EngineCheck(
    id="AT009",
    name="nothing-cut",
    question="does each tensor rank have a shard of the layers?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="parallel.tensor_parallel_size",
    gates=("TP009", "TP015"),
    fix="remove `deepspeed.tensor_parallel.preset_model` and `partition_config`, or name the model's own layers",
)
