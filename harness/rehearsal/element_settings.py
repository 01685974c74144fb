# SPDX-License-Identifier: Apache-2.0
"""Settings in elements (buckets, sub-groups, thresholds), scaled with a narrower model to keep its code paths.

A parameter that stays gathered in the whole model stays gathered in the small one. Several sub-groups stay several.
A shard that is large enough to swap stays so where the size allows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.facts.model_lookup import ModelFacts, facts_from_config
from harness.run.resolved_run import ResolvedRun

_MIN_SWAP_ELEMENTS = 1 << 18
"""The fewest elements of fp32 that DeepSpeed swaps: 1 MiB."""
_BUCKET_KEYS = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_max_live_parameters",
)
_REUSE_KEYS = ("stage3_max_reuse_distance",)
_REASON = "scaled with the parameters"


def scale_element_settings(
    run: ResolvedRun, config: Mapping[str, Any], small_config: Mapping[str, Any], ranks: int
) -> Iterator[tuple[str, int, str]]:
    """(key, value, reason) of the keys that the spec sets, and of the two that select the path of a parameter."""
    whole, small = facts_from_config(config, build=True).facts, facts_from_config(small_config, build=True).facts
    if whole is None or small is None or run.spec.zero.stage == 0:
        return
    zero = run.spec.zero
    factor = small.num_parameters / whole.num_parameters
    for key in (*_BUCKET_KEYS, *_REUSE_KEYS):
        value = getattr(zero, key, None)
        if value:
            yield f"zero.{key}", max(1024, int(value * factor)), _REASON
    if zero.stage < 3:
        return
    if zero.sub_group_size is not None:
        groups = max(
            2, min(4, whole.num_parameters // ((run.parallel_dims.world_size or 1) * max(1, zero.sub_group_size)))
        )
        yield (
            "zero.sub_group_size",
            max(_MIN_SWAP_ELEMENTS, small.num_parameters // ranks // groups),
            "a few sub-groups",
        )
    limit = zero.stage3_param_persistence_threshold
    limit = 100_000 if limit is None else limit
    yield (
        "zero.stage3_param_persistence_threshold",
        _scale_persistence_threshold(whole, small, limit),
        "the same parameters stay gathered",
    )
    offload = zero.offload_param
    if offload is not None and offload.device == "nvme":
        share = -(-small.largest_parameter // ranks)
        yield (
            "zero.offload_param.buffer_size",
            max(_MIN_SWAP_ELEMENTS, -(-share * 107 // 100)),
            "holds the largest shard",
        )


def _scale_persistence_threshold(whole: ModelFacts, small: ModelFacts, limit: int) -> int:
    """Between the largest parameter that stays gathered in the whole model and the smallest that does not."""
    pairs = zip(
        (*whole.before, *whole.largest_layer, *whole.after),
        (*small.before, *small.largest_layer, *small.after),
        strict=True,
    )
    return max((small_shape.numel for whole_shape, small_shape in pairs if whole_shape.numel <= limit), default=0)
