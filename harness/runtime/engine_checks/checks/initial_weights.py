"""AT011: the weights after `deepspeed.initialize` are those from before it."""

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


def _observe(seen: Observations) -> Any:
    names = [name for name, noted in seen.initial_weights.items() if noted.checksums]
    if not names:
        raise NotApplicable("all weights are on NVMe")
    other, looked = [], 0
    parts: dict[str, dict[str, Any]] = {"tensor": {}, "zero": {}}
    for name, (dtype, is_cut, has) in local_checksums(seen.engine, seen.parameters, names).items():
        noted = seen.initial_weights[name]
        was = (noted.checksums or {}).get(dtype)
        if was is None:
            continue
        looked += 1
        if is_cut:
            parts["tensor"][name] = [list(was), list(has)]
        elif (
            hasattr(seen.parameters[name], "ds_tensor") and not noted.is_sharded
        ):  # such as adapters, made whole on every rank
            parts["zero"][name] = [list(was), list(has)]
        elif was != has:
            other.append(name)
    return {"other": other[:5], "looked": looked, **parts}


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    for rank, has in enumerate(found):
        if has["other"]:
            return _changed_result(has["other"], rank)
    for kind in ("tensor", "zero"):
        groups: dict[tuple[int, int], list[int]] = {}
        for rank in range(len(found)):
            place = asked.dims_of_rank(rank)
            groups.setdefault(
                (place.pipeline_stage, place.data_parallel_rank if kind == "tensor" else place.tensor_parallel_rank), []
            ).append(rank)
        for ranks in groups.values():
            parts = [found[rank][kind] for rank in ranks]
            wrong = [n for n, (was, _) in parts[0].items() if combine_checksums(p[n][1] for p in parts) != tuple(was)]
            if wrong:
                return _changed_result(wrong, ranks[0])
    if not any(has["looked"] for has in found):
        return CheckResult("skipped", "no weight could be read")
    return check_passed({"weights": found[0]["looked"]})


def _changed_result(names: Sequence[str], rank: int) -> CheckResult:
    return check_failed(
        f"{len(names)} or more weights are not what they were before `deepspeed.initialize`, such as `{names[0]}`"
        f" (rank {rank})",
        list(names),
        "a pretrained model would be lost, and a new one start from other numbers than those of its seed",
    )


CHECK = EngineCheck(
    id="AT011",
    name="weights-changed-by-initialize",
    question="are the weights after `deepspeed.initialize` those from before it?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero",
    gates=("ZR030",),
    fix="take `deepspeed.zero_optimization.zenflow` and other experiments out; else report it with `engine_checks.json`",
)
