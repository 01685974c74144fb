# SPDX-License-Identifier: Apache-2.0
"""Memory of one GPU of a pipeline stage: weights, gradients, masters and states, activations in flight, the loss."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.model_lookup import ModelFacts
from harness.facts.model_parts import Parameters
from harness.plan.degrees.degrees_request import Checkpointing, DegreesRequest
from harness.plan.degrees.local_matrices import LocalNumel, count_local, is_expert
from harness.plan.degrees.rank_groups import StageLayers
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


# Activations of a layer, a head and a stage on one GPU, with the fused kernels that such runs have. Bytes.
#
# The terms are those of arXiv 2205.05198 (section 4) for today's layers: a flash kernel keeps no scores, a fused norm
# keeps its input, and there is no dropout. `harness.plan.memory.activation_bytes` has those of `transformers`,
# which keep more.

_LOGSUMEXP = 4


def layer_activation_bytes(
    model: ModelFacts, layer: Parameters, request: DegreesRequest, checkpointing: Checkpointing
) -> float:
    """Bytes a token that a layer keeps from forward to backward.

    Two residuals and the two norm outputs (4 e h, divided with sequence parallelism), queries, keys, values and the
    output of attention, and the MLP's columns (3 of a gated one). Inputs of FP8 products are kept in FP8. `selective`
    computes the norms, the product of a gated MLP and latent attention's up-projections again (arXiv 2412.19437,
    section 3.2.3); `full` keeps the layer's input alone.
    """
    element, degrees = request.element_bytes, request.degrees
    if checkpointing == "full":
        return element * model.hidden / degrees.sequence_share
    product_input = 1 if request.precision == "fp8" else element
    is_selective = checkpointing == "selective"
    norms = 2 * element * model.hidden + (0 if is_selective else 2 * product_input * model.hidden)
    return (
        norms / degrees.sequence_share
        + _attention_bytes(model, element, product_input, is_selective) / degrees.tensor
        + _mlp_bytes(model, layer, element, product_input, is_selective) / degrees.tensor
    )


def _attention_bytes(model: ModelFacts, element: int, product_input: int, is_selective: bool) -> float:
    logsumexp = _LOGSUMEXP * model.heads
    if model.latent is None:
        width, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        return element * (width + 2 * keys) + product_input * width + logsumexp
    latent = model.latent
    low_rank = element * (latent.queries + latent.keys + latent.rope)
    heads = 2 * (latent.plain + latent.rope) + latent.value
    kept = 0 if is_selective else element * model.heads * heads + product_input * (latent.queries + latent.keys)
    return low_rank + kept + product_input * model.heads * latent.value + logsumexp


def _mlp_bytes(model: ModelFacts, layer: Parameters, element: int, product_input: int, is_selective: bool) -> float:
    """Columns of the MLP; of experts the tokens that arrive, K a token, their columns, and what the router keeps."""

    def columns(width: float, is_gated: bool) -> float:
        inputs, product = (2 if is_gated else 1) * element * width, product_input * width
        return inputs + (0 if is_selective and is_gated else product)

    gated = any(name in parameter.name for parameter in layer for name in ("gate_proj", "gate_up_proj"))
    if not any(is_expert(parameter) for parameter in layer):
        up = [parameter.shape for parameter in layer if parameter.name.endswith(("gate_proj.weight", "fc1.weight"))]
        return columns(up[0][0] if up else model.intermediate, gated)
    arrived = model.experts_per_token * (product_input * model.hidden + columns(model.intermediate, True))
    return arrived + columns(model.shared, True) + 4 * model.experts


def head_activation_bytes(model: ModelFacts, request: DegreesRequest) -> float:
    """Bytes a token at the loss: the final norm, the logits of this GPU's words and their softmax in fp32, which turns
    into the gradient in place (Megatron's vocabulary-parallel cross entropy).
    """
    degrees, element = request.degrees, request.element_bytes
    return 2 * element * model.hidden / degrees.sequence_share + (element + 4) * model.vocab / degrees.tensor
