# SPDX-License-Identifier: Apache-2.0
"""Ways of training a model: the places of its states, adapters, and the parallel degrees that each is tried with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from harness.facts.model_lookup import ModelFacts
from harness.plan.search.alternatives import STAGES_AND_OFFLOADS, is_stage_supported
from harness.plan.search.plan_request import ADAPTERS, QUANTIZED
from harness.plan.settings.plan_settings import OffloadDevice, PlanSettings
from harness.plan.weights.tensor_shard import shard_model

LONG_SEQUENCE = 16_384  # tokens from which sequence parallelism is tried, too


Place = tuple[int, OffloadDevice, OffloadDevice]


class Way(NamedTuple):
    """A way of training: stages with the places of optimizer and parameters, the keys of its adapters, and an
    optimizer's states in 8 bits, which no spec has.
    """

    name: str
    places: tuple[Place, ...]
    adapters: tuple[str, ...] = ()
    in_8_bits: bool = False


_ON_GPUS: tuple[Place, ...] = tuple((stage, "none", "none") for stage in (3, 2, 0))
WAYS = (
    Way("all on GPUs", _ON_GPUS),
    Way("8-bit Adam", _ON_GPUS, in_8_bits=True),
    Way("CPU offload", ((3, "cpu", "none"), (3, "cpu", "cpu"), (2, "cpu", "none"))),
    Way("NVMe offload", ((3, "nvme", "none"), (3, "nvme", "nvme"))),
    Way("LoRA", ((3, "none", "none"), (2, "none", "none"), (3, "cpu", "cpu")), ADAPTERS),
    Way("QLoRA", ((2, "none", "none"),), (*ADAPTERS, *QUANTIZED)),
)
LORA_ON_GPUS = Way("LoRA on GPUs", _ON_GPUS, ADAPTERS)
"""No row of the table: how many GPUs hold adapters without offload."""
OF_ALL = tuple(way for way in WAYS if not way.adapters and not way.in_8_bits)


def places_of(way: Way, stage: int | None, settings: PlanSettings) -> Iterable[Place]:
    """The places of a way. `stage`: the user's own, which those of its places take that it has. A pipeline has stage 1,
    and no adapters.
    """
    if settings.pipeline_parallel_size > 1:
        if way.adapters:
            return ()
        stage = 1 if stage is None else stage
    if stage is None:
        return way.places
    places = dict.fromkeys((stage, *devices) for _, *devices in way.places)
    return [each for each in STAGES_AND_OFFLOADS if each in places and is_stage_supported(stage, settings)]


def degrees_of(settings: PlanSettings, model: ModelFacts, way: Way, kind: Literal["sequence", "tensor"]) -> list[int]:
    """Of a run with data ranks alone: the ranks of a host that divide the heads. One, and for long sequences the most
    that can share one; or tensor ranks.
    """
    alone = settings.world_size == settings.data_parallel_size
    most = math.gcd(settings.data_parallel_size, settings.ranks_per_host, model.heads) if alone else 1
    if kind == "sequence":
        return sorted({1, most}) if settings.seq_length >= LONG_SEQUENCE else [1]
    fitting = (each for each in (2, 4, 8) if most % each == 0 and model.kv_heads % each == 0 and not way.adapters)
    return [each for each in fitting if shard_model(model, each, settings.tensor_plan).is_useful]


def way_named(name: str) -> Way:
    """The way of a row of the table."""
    return next(way for way in (*WAYS, LORA_ON_GPUS) if way.name == name)
