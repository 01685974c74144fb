# SPDX-License-Identifier: Apache-2.0
"""AT010: every trained parameter is in exactly one group, and the shards add up to the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_failed, check_passed
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import master_weights, numel_of, parameter_groups_of
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    parameters = observations.parameters
    num_groups = Counter(id(p) for group in parameter_groups_of(observations.engine.optimizer) for p in group)
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    # a tensor rank beyond the key-value heads has empty shards of attention, which no group needs
    ungrouped = [name for name, p in trainable.items() if num_groups[id(p)] != 1 and numel_of(p)]
    frozen = [name for name, p in parameters.items() if not p.requires_grad and num_groups[id(p)]]
    trainable_before = {name for name, record in observations.initial_weights.items() if record.is_trainable}
    is_swapped = bool(getattr(observations.engine.optimizer, "swap_optimizer", False))
    has_experts = any(getattr(p, "allreduce", True) is False for p in trainable.values())
    return {
        "missing": ungrouped[:3],
        "frozen": frozen[:3],
        "other": sorted(set(trainable) ^ (trainable_before & set(parameters)))[:3],
        "trained": sum(numel_of(p) for p in trainable.values()),
        "held": None if is_swapped or has_experts else sum(m.numel() for m in master_weights(observations.engine)),
        "parameters": len(trainable),
    }


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    for rank, values in enumerate(rank_values):
        if values["missing"]:
            return check_failed(
                f"`{values['missing'][0]}` is trained, but is not in exactly one group of the optimizer on rank {rank}",
                values,
            )
        if values["frozen"]:
            return check_failed(f"`{values['frozen'][0]}` is frozen, and the optimizer of rank {rank} has it", values)
        if values["other"]:
            return check_failed(
                f"`{values['other'][0]}` was trainable before the engine was built and is not now,"
                " or the other way round",
                values,
            )
    return _evaluate_sizes(expected, rank_values)


def _evaluate_sizes(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    """Compare the shards of all ranks that share a replica with its size. Padding makes them a little larger."""
    details = {"trained": rank_values[0]["trained"], "held": rank_values[0]["held"]}
    if any(values["held"] is None for values in rank_values) or expected.zero_stage not in (0, 1, 2, 3):
        return check_passed(details)
    ranks_by_replica: dict[tuple[int, int], list[Any]] = {}
    for rank, values in enumerate(rank_values):
        topology = expected.dims_of_rank(rank)
        ranks_by_replica.setdefault((topology.tensor_parallel_rank, topology.pipeline_stage), []).append(values)
    for (tensor, stage), ranks in ranks_by_replica.items():
        held_numel = sum(values["held"] for values in ranks)
        numel = ranks[0]["trained"] * (len(ranks) if expected.zero_stage == 0 else 1)
        # Each parameter of stage 3 is padded to a multiple of the ranks, each group of stages 1 and 2 to more.
        padding = 0
        if expected.zero_stage:
            padding = len(ranks) * (ranks[0]["parameters"] if expected.zero_stage == 3 else 4096)
        if not numel <= held_numel <= numel + padding:
            part = f" (tensor rank {tensor}, pipeline stage {stage})" if len(ranks_by_replica) > 1 else ""
            return check_failed(
                f"the optimizers of {len(ranks)} ranks hold {held_numel:,} elements, should hold {numel:,}{part}",
                details,
            )
    return check_passed(details)


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
