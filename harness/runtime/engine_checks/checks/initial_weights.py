# SPDX-License-Identifier: Apache-2.0
"""AT011: `deepspeed.initialize` does not change the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import local_checksums
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.engine_checks.weight_checksums import combine_checksums


def _observe(observations: Observations) -> Any:
    names = [name for name, record in observations.initial_weights.items() if record.checksums]
    if not names:
        raise NotApplicable("all weights are on NVMe")
    changed_names, num_compared = [], 0
    parts: dict[str, dict[str, Any]] = {"tensor": {}, "zero": {}}
    for name, (dtype, is_cut, after) in local_checksums(observations.engine, observations.parameters, names).items():
        record = observations.initial_weights[name]
        before = (record.checksums or {}).get(dtype)
        if before is None:
            continue
        num_compared += 1
        if is_cut:
            parts["tensor"][name] = [list(before), list(after)]
        elif hasattr(observations.parameters[name], "ds_tensor") and not record.is_sharded:
            # Such as adapters, which are created whole on every rank.
            parts["zero"][name] = [list(before), list(after)]
        elif before != after:
            changed_names.append(name)
    return {"other": changed_names[:5], "looked": num_compared, **parts}


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    for rank, values in enumerate(rank_values):
        if values["other"]:
            return _changed_result(values["other"], rank)
    for kind in ("tensor", "zero"):
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(len(rank_values)):
            topology = expected.dims_of_rank(rank)
            tensor_group = topology.data_parallel_rank, topology.sequence_parallel_rank
            others = tensor_group if kind == "tensor" else (topology.tensor_parallel_rank,)
            groups.setdefault((topology.pipeline_stage, *others), []).append(rank)
        for ranks in groups.values():
            parts = [rank_values[rank][kind] for rank in ranks]
            changed_names = [
                n for n, (before, _) in parts[0].items() if combine_checksums(p[n][1] for p in parts) != tuple(before)
            ]
            if changed_names:
                return _changed_result(changed_names, ranks[0])
    if not any(values["looked"] for values in rank_values):
        return CheckResult("skipped", "no weight could be read")
    return check_passed({"weights": rank_values[0]["looked"]})


def _changed_result(names: Sequence[str], rank: int) -> CheckResult:
    return check_failed(
        f"{len(names)} or more weights were changed by `deepspeed.initialize`, such as `{names[0]}` (rank {rank})",
        list(names),
        "a pretrained model would be lost, and a new one start from other numbers than those of its seed",
    )


CHECK = EngineCheck(
    id="AT011",
    name="weights-changed-by-initialize",
    question="does `deepspeed.initialize` leave the weights unchanged?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero",
    gates=("ZR030",),
    fix="remove `deepspeed.zero_optimization.zenflow` and other experiments; else report it with `engine_checks.json`",
)
