"""AT010: every trained parameter in exactly one group, and the shards together as large as the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_failed, check_passed
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import master_weights, numel_of, parameter_groups_of
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    named = seen.parameters
    times = Counter(id(p) for group in parameter_groups_of(seen.engine.optimizer) for p in group)
    trained = {name: p for name, p in named.items() if p.requires_grad}
    missing = [name for name, p in trained.items() if times[id(p)] != 1]
    frozen = [name for name, p in named.items() if not p.requires_grad and times[id(p)]]
    was = {name for name, noted in seen.initial_weights.items() if noted.is_trainable}
    swapped = bool(getattr(seen.engine.optimizer, "swap_optimizer", False))
    experts = any(getattr(p, "allreduce", True) is False for p in trained.values())
    return {
        "missing": missing[:3],
        "frozen": frozen[:3],
        "other": sorted(set(trained) ^ (was & set(named)))[:3],
        "trained": sum(numel_of(p) for p in trained.values()),
        "held": None if swapped or experts else sum(m.numel() for m in master_weights(seen.engine)),
        "parameters": len(trained),
    }


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    for rank, has in enumerate(found):
        if has["missing"]:
            return check_failed(
                f"`{has['missing'][0]}` is trained, and not in exactly one group of the optimizer on rank {rank}", has
            )
        if has["frozen"]:
            return check_failed(f"`{has['frozen'][0]}` is frozen, and the optimizer of rank {rank} has it", has)
        if has["other"]:
            return check_failed(
                f"`{has['other'][0]}` was trained before the engine was built and is not now, or the other way round",
                has,
            )
    return _evaluate_sizes(asked, found)


def _evaluate_sizes(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    """The shards of all ranks that share a replica, beside its count. Padding makes them a little larger."""
    told = {"trained": found[0]["trained"], "held": found[0]["held"]}
    if any(has["held"] is None for has in found) or asked.zero_stage not in (0, 1, 2, 3):
        return check_passed(told)
    sharers: dict[tuple[int, int], list[Any]] = {}
    for rank, has in enumerate(found):
        place = asked.dims_of_rank(rank)
        sharers.setdefault((place.tensor_parallel_rank, place.pipeline_stage), []).append(has)
    for (tensor, stage), ranks in sharers.items():
        held = sum(has["held"] for has in ranks)
        wanted = ranks[0]["trained"] * (len(ranks) if asked.zero_stage == 0 else 1)
        # Each parameter of stage 3 is padded to a multiple of the ranks, each group of stages 1 and 2 to more.
        padding = len(ranks) * (ranks[0]["parameters"] if asked.zero_stage == 3 else 4096) if asked.zero_stage else 0
        if not wanted <= held <= wanted + padding:
            part = f" (tensor rank {tensor}, pipeline stage {stage})" if len(sharers) > 1 else ""
            return check_failed(
                f"the optimizers of {len(ranks)} ranks hold {held:,} elements, should hold {wanted:,}{part}", told
            )
    return check_passed(told)


CHECK = EngineCheck(
    id="AT010",
    name="parameters-not-partitioned",
    question="is every trained parameter in exactly one partition, and is their sum the model's count?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.stage",
    fix="report it with `engine_checks.json`: the optimizer would leave weights untrained, or step them twice",
)
