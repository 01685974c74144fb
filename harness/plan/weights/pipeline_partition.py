# SPDX-License-Identifier: Apache-2.0
"""The layers of each pipeline stage, as DeepSpeed's `PipelineModule` assigns them, and a tensor rank's part of them.

`tests/training/pipeline/test_pipeline_families.py` compares both with live pipelines.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from itertools import pairwise
from math import inf

from harness.facts.model_facts import ModelFacts
from harness.facts.model_parts import Parameter
from harness.facts.pipeline_support import compile_layer_pattern, layer_class_names

_MATRIX = 2
_ROW_MODULES = ("o_proj", "down_proj", "c_proj")
"""Linears of the pipeline's families that are sharded by their inputs: every tensor rank has the whole bias."""
_POSITION_EMBEDDING = "wpe"


def heaviest_stage(model: ModelFacts, stages: int, tensor: int, method: str) -> list[Parameter]:
    """The parameters of one tensor rank of the stage that has most of them."""
    return max(stage_parameters(model, stages, tensor, method), key=lambda stage: sum(p.numel for p in stage))


def stage_parameters(model: ModelFacts, stages: int, tensor: int, method: str) -> list[list[Parameter]]:
    """The parameters of a tensor rank by stage. A tied head's stage has the embedding again."""
    layers = _pipeline_layers(model)
    bounds = _stage_bounds(model, layers, stages, tensor, method)
    return [
        [_shard(parameter, tensor) for layer in layers[start:stop] for parameter in layer]
        for start, stop in pairwise(bounds)
    ]


def _pipeline_layers(model: ModelFacts) -> list[tuple[Parameter, ...]]:
    """Embeddings, decoder layers, the last norm and the head."""
    norm = tuple(parameter for parameter in model.after if len(parameter.shape) < _MATRIX)
    head = tuple(parameter for parameter in model.after if len(parameter.shape) == _MATRIX)
    embeddings = [(parameter,) for parameter in model.before]
    return [*embeddings, *model.layers, norm, model.before[:1] if model.tied else head]


def _stage_bounds(
    model: ModelFacts, layers: list[tuple[Parameter, ...]], stages: int, tensor: int, method: str
) -> list[int]:
    """The first layer of each stage, and the end."""
    if method == "uniform" or stages == 1:
        return _divide_uniformly(len(layers), stages)
    if method.startswith("type:"):
        weights = _matches(model, tensor, method)
    else:
        weights = tuple(sum(parameter.numel for parameter in layer) for layer in layers)
    return _divide_evenly(weights, stages)


def _matches(model: ModelFacts, tensor: int, method: str) -> tuple[int, ...]:
    """1 for each layer that the pattern matches; for the decoder layers if a gate refuses the pattern or family."""
    with suppress(re.error):
        pattern = compile_layer_pattern(method)
        found = tuple(int(bool(pattern.search(name))) for name in layer_class_names(model, tensor))
        if any(found):
            return found
    return (*[0] * len(model.before), *[1] * model.num_layers, 0, 0)


def _divide_uniformly(items: int, parts: int) -> list[int]:
    """`partition_uniform` of DeepSpeed's `runtime/utils.py`."""
    if items <= parts:
        return [min(part, items) for part in range(parts + 1)]
    size, residual = divmod(items, parts)
    return [part * size + min(part, residual) for part in range(parts + 1)]


@cache
def _divide_evenly(weights: tuple[int, ...], parts: int) -> list[int]:
    """`partition_balanced` of DeepSpeed's `runtime/utils.py`: the smallest difference of the heaviest and the lightest
    part, among equals the last that it finds.
    """
    items = len(weights)
    if items <= parts:
        return _divide_uniformly(items, parts)
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    table = (items + 1, parts + 1)
    most, least, cost = ([[inf] * table[1] for _ in range(table[0])] for _ in range(3))
    position = [[0] * table[1] for _ in range(table[0])]
    most[0][0] = cost[0][0] = 0
    for end in range(1, items + 1):
        for part in range(1, min(end, parts) + 1):
            for start in range(end):
                weight = sums[end] - sums[start]
                largest, smallest = max(most[start][part - 1], weight), min(least[start][part - 1], weight)
                if cost[end][part] >= largest - smallest:
                    cost[end][part], most[end][part], least[end][part] = largest - smallest, largest, smallest
                    position[end][part] = start
    bounds = [items]
    for part in range(parts, 0, -1):
        bounds.append(position[bounds[-1]][part])
    return bounds[::-1]


def _shard(parameter: Parameter, degree: int) -> Parameter:
    """One tensor rank's part: of every linear and of what has the vocabulary; norms and positions stay whole."""
    if degree == 1:
        return parameter
    module, _, kind = parameter.name.rpartition(".")
    child = module.rpartition(".")[2]
    is_matrix = len(parameter.shape) == _MATRIX and child != _POSITION_EMBEDDING
    is_column_bias = kind == "bias" and child.endswith(("_proj", "c_attn", "c_fc")) and child not in _ROW_MODULES
    if not (is_matrix or is_column_bias):
        return parameter
    return parameter._replace(shape=(-(-parameter.shape[0] // degree), *parameter.shape[1:]))
