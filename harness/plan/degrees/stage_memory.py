# SPDX-License-Identifier: Apache-2.0
"""Memory of one GPU of a pipeline stage: weights, gradients, masters and states, activations in flight, the loss."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.model_lookup import ModelFacts
from harness.facts.model_parts import Parameters
from harness.plan.degrees.degrees_request import DegreesRequest
from harness.plan.degrees.local_matrices import LocalNumel, count_local
from harness.plan.degrees.rank_groups import StageLayers
from harness.plan.degrees.stage_activations import head_activation_bytes, layer_activation_bytes
from harness.plan.memory.transient_memory import ALLOCATOR_SLACK, CUDA_CONTEXT, NCCL_BUFFERS
from harness.plan.time.pipeline_schedule import micro_batches_in_flight


@dataclass(frozen=True, slots=True)
class StageItem:
    """Bytes of one kind on one GPU, and how they come about. `assumed`: no tensor, and not counted from the model."""

    kind: str
    bytes: float
    formula: str
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The items of a GPU of one stage."""

    stage: StageLayers
    parameters: LocalNumel
    in_flight: float
    items: tuple[StageItem, ...]

    @property
    def tensors(self) -> float:
        """Bytes of tensors."""
        return sum(item.bytes for item in self.items if not item.assumed)

    @property
    def total(self) -> float:
        """Bytes with context, buffers of NCCL and the allocator's slack."""
        return sum(item.bytes for item in self.items)


def stage_parameters(model: ModelFacts, stage: StageLayers, request: DegreesRequest) -> LocalNumel:
    """Elements of one GPU of the stage. A tied head on another stage than the embedding is a second copy."""
    degrees = request.degrees
    ends: Parameters = ()
    if stage.has_embedding:
        ends += model.before
    if stage.has_head:
        ends += model.after
        if model.tied and not stage.has_embedding:
            ends += tuple(each for each in model.before if each.shape == (model.vocab, model.hidden))
    total = count_local(ends, degrees)
    counted: dict[int, LocalNumel] = {}
    for index in stage.layers:
        layer = model.layers[index]
        total += counted.setdefault(id(layer), count_local(layer, degrees))
    return total


def estimate_stage(model: ModelFacts, stage: StageLayers, request: DegreesRequest) -> StageMemory:
    """The memory of one GPU of the stage at its fullest: all activations in flight, before the optimizer's step."""
    parameters = stage_parameters(model, stage, request)
    degrees = request.degrees
    in_flight = micro_batches_in_flight(
        degrees.pipeline, stage.stage, request.micro_batches, degrees.schedule, degrees.virtual_stages
    )
    items = [*_state_items(parameters, request), *_activation_items(model, stage, request, in_flight)]
    tensors = sum(item.bytes for item in items)
    items += [
        StageItem("CUDA context and NCCL buffers", float(CUDA_CONTEXT + NCCL_BUFFERS), "assumed", assumed=True),
        StageItem("allocator slack", ALLOCATOR_SLACK * tensors, f"assumed: {ALLOCATOR_SLACK:.0%}", assumed=True),
    ]
    return StageMemory(stage, parameters, in_flight, tuple(items))


def _state_items(parameters: LocalNumel, request: DegreesRequest) -> list[StageItem]:
    """ZeRO divides masters and states from stage 1 on, gradients from 2, weights at 3; experts over their own group."""
    recipe, degrees = request.recipe, request.degrees
    items = []
    for kind, width, divided_from in (
        ("parameters", recipe.parameters, 3),
        ("gradients", recipe.gradients, 2),
        ("master weights", recipe.master, 1),
        ("optimizer states", recipe.states, 1),
    ):
        is_divided = request.zero_stage >= divided_from
        dense, experts = (degrees.data_group, degrees.expert_data_group) if is_divided else (1, 1)
        size = width * (parameters.dense / dense + parameters.experts / experts)
        formula = f"{width} x {parameters.dense:,}" + (f" / {dense:,}" if dense > 1 else "")
        if parameters.experts:
            formula += f" + {width} x {parameters.experts:,} of experts" + (f" / {experts:,}" if experts > 1 else "")
        if width:
            items.append(StageItem(kind, size, formula))
    return items


def _activation_items(
    model: ModelFacts, stage: StageLayers, request: DegreesRequest, in_flight: float
) -> list[StageItem]:
    tokens = request.micro_batch * request.seq_length / request.degrees.context
    kept = sum(
        layer_activation_bytes(model, model.layers[index], request, request.checkpointing) for index in stage.layers
    )
    if request.degrees.schedule == "dualpipe" and request.degrees.pipeline > 1:
        kept /= 2  # p + 1 micro-batches over both chunks
    layers = len(stage.layers)
    formula = f"{layers} layer{'s' if layers != 1 else ''} x {tokens:,.0f} tokens x {in_flight:g} micro-batches"
    items = [StageItem("activations in flight", kept * tokens * in_flight, formula)]
    if request.checkpointing == "full" and stage.layers:
        largest = max(layer_activation_bytes(model, model.layers[each], request, "none") for each in stage.layers)
        items.append(StageItem("a layer while it is recomputed", largest * tokens, f"{tokens:,.0f} tokens"))
    if stage.has_head:
        words = -(-model.vocab // request.degrees.tensor)
        formula = f"{request.element_bytes + 4} x {words:,} words x {tokens:,.0f} tokens, and the final norm"
        items.append(StageItem("head and loss", head_activation_bytes(model, request) * tokens, formula))
    return items
