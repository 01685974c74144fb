# SPDX-License-Identifier: Apache-2.0
"""The trained weights of each layer, and the activations that it saves less and more for them than for all.

A linear saves its input for the gradient of its weight alone, a norm its normalised input for that of its scale. A
layer without a trained weight in or before it saves nothing. An adapter adds its inner activation, and needs its
module's input. Counted with saved-tensor hooks (tests/training/plan/test_plan_activations.py). No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from harness.facts.model_facts import ModelFacts, once_a_model
from harness.facts.model_parts import Parameter, Parameters
from harness.plan.weights.trainable_split import TrainableChoice, split_parameters

_WRAPPERS = (".base_layer.", ".modules_to_save.default.")


@dataclass(frozen=True, slots=True)
class LayerTraining:
    """The trained weights of a layer, and the module, rank and input width of each adapter; names inside the layer.

    `input_needs_grad`: something before the layer is trained.
    """

    weights: frozenset[str]
    adapters: tuple[tuple[str, int, int], ...] = ()
    dropout: bool = False
    input_needs_grad: bool = True

    @property
    def saves(self) -> bool:
        """Does it save anything for the backward pass?"""
        return self.input_needs_grad or bool(self.weights or self.adapters)

    def needs_input(self, module: str) -> bool:
        """Does the gradient of this linear's weight, or of its adapter, need its input? Dropout copies it."""
        is_adapted = not self.dropout and any(name == module for name, _, _ in self.adapters)
        return is_adapted or f"{module}.weight" in self.weights or module in self.weights


class _Input(NamedTuple):
    """An activation that is saved for some linears alone: their names, and its elements a token.

    `divided`: tensor-parallel ranks divide it.
    """

    modules: tuple[str, ...]
    numel: int
    divided: bool = False


class ModelTraining(NamedTuple):
    """The trained part of a model: of each layer, and of what comes after the layers."""

    layers: tuple[LayerTraining, ...]
    weights: frozenset[str]

    def trains_head(self, model: ModelFacts) -> bool:
        """Is the output layer's weight trained, which is the embedding's where they are tied?"""
        names = {parameter.name for parameter in (model.before if model.tied else model.after)}
        matrices = {p.name for p in (*model.before, *model.after) if p.shape == (model.vocab, model.hidden)}
        return bool(names & matrices & self.weights)


@once_a_model
def model_training(
    model: ModelFacts, choice: TrainableChoice | None, *, embeddings_need_grad: bool = False
) -> ModelTraining | None:
    """None where all is trained. `embeddings_need_grad`: the output of a frozen embedding requires a gradient."""
    if choice is None:
        return None
    prefix = f"{model.layer_path}."
    inside: list[list[Parameter]] = [[] for _ in model.layers]
    outside: set[str] = set()
    for parameter in split_parameters(model, choice).trainable:
        name = _without_wrappers(parameter.name)
        index, _, rest = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and index.isdigit():
            inside[int(index)].append(Parameter(rest, parameter.shape))
        else:
            outside.add(name)
    before = {parameter.name for parameter in model.before}
    needs_grad = embeddings_need_grad or any(
        name in before or name.partition(".lora_")[0] + ".weight" in before for name in outside
    )
    layers: list[LayerTraining] = []
    dropout = choice.lora is not None and choice.lora.lora_dropout > 0
    for parameters in inside:
        layers.append(_layer_training(parameters, dropout, needs_grad))
        needs_grad = needs_grad or bool(parameters)
    return ModelTraining(tuple(layers), frozenset(outside))


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, ".")
    return name


def _layer_training(parameters: list[Parameter], dropout: bool, input_needs_grad: bool) -> LayerTraining:
    weights: set[str] = set()
    adapters: list[tuple[str, int, int]] = []
    for parameter in parameters:
        module, marker, _ = parameter.name.partition(".lora_A.")
        if marker:
            adapters.append((module, parameter.shape[0], parameter.shape[1]))
        elif ".lora_" not in parameter.name:
            weights.add(parameter.name)
    return LayerTraining(frozenset(weights), tuple(adapters), dropout, input_needs_grad)


def saved_bytes_change(
    model: ModelFacts,
    layer: Parameters,
    training: LayerTraining,
    element_bytes: int,
    attention: str,
    *,
    tiles_norms: bool = False,
) -> tuple[float, float]:
    """Bytes a token that the layer saves beyond one that is trained whole, as a rule negative: what every
    tensor-parallel rank keeps, and what they divide. `tiles_norms`: norms keep their inputs alone, frozen or not.
    """
    whole = divided = 0.0
    for inputs in _inputs_of(model, layer, attention):
        if not any(map(training.needs_input, inputs.modules)):
            whole, divided = (
                (whole, divided - element_bytes * inputs.numel)
                if inputs.divided
                else (whole - element_bytes * inputs.numel, divided)
            )
    whole -= sum(_norm_bytes(model, layer, training, element_bytes, tiles_norms))
    for _, rank, width in training.adapters:
        whole += element_bytes * rank + ((element_bytes + 1) * width if training.dropout else 0)
    return whole, divided


def frozen_head_bytes(
    model: ModelFacts, training: ModelTraining, element_bytes: int, *, tiles_norms: bool = False
) -> int:
    """Bytes a token that the final norm and the head save less than trained ones: an input of each that no gradient
    needs.
    """
    head = 0 if training.trains_head(model) else element_bytes * model.hidden
    has_norm_scale = any(p.name in training.weights for p in model.after if len(p.shape) == 1)
    norm = 4 if model.family in _FP32_NORM_FAMILIES else element_bytes if model.family in _RMS_FAMILIES else 0
    return head + (0 if has_norm_scale or tiles_norms else norm * model.hidden)


def _norm_bytes(
    model: ModelFacts, layer: Parameters, training: LayerTraining, element_bytes: int, tiles_norms: bool
) -> Iterator[int]:
    """The normalised inputs of frozen RMS norms; in fp32 in Gemma. Of the first trained layer also the norm's input,
    which nothing needs.
    """
    is_wide = model.family in _FP32_NORM_FAMILIES
    if not is_wide and model.family not in _RMS_FAMILIES:
        return
    heads = {"self_attn.q_norm.weight": model.heads, "self_attn.k_norm.weight": model.kv_heads}
    for parameter in layer:
        if len(parameter.shape) == 1 and "norm" in parameter.name and parameter.name not in training.weights:
            if tiles_norms and parameter.name not in heads:
                continue
            width = parameter.numel * heads.get(parameter.name, 1)
            yield (4 if is_wide else element_bytes) * width
            if parameter.name == "input_layernorm.weight" and not training.input_needs_grad:
                yield 4 * width + 4


_FP32_NORM_FAMILIES = frozenset(("gemma", "gemma2", "gemma3_text", "gpt_oss"))
_RMS_FAMILIES = frozenset(("llama", "mistral", "qwen2", "qwen3", "phi3", "mixtral", "qwen2_moe", "qwen3_moe"))
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def _inputs_of(model: ModelFacts, layer: Parameters, attention: str) -> Iterator[_Input]:
    """Of the families whose modules are known; of others nothing is taken off."""
    hidden, width = model.hidden, model.heads * model.head_dim
    names = {parameter.name for parameter in layer}
    intermediate = next((p.shape[0] for p in layer if p.name == "mlp.gate_proj.weight"), model.intermediate)
    if model.family in _RMS_FAMILIES or model.family.startswith("gemma"):
        yield _Input((*_QKV, "self_attn.qkv_proj"), hidden)
        # elsewhere the kernel's output itself is what the projection reads
        if attention == "eager" or model.family in ("gemma2", "phi3"):
            yield _Input(("self_attn.o_proj",), width, divided=True)
        if not any(".experts." in name for name in names):
            yield _Input(("mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj"), hidden)
            yield _Input(("mlp.down_proj",), intermediate, divided=True)
        else:
            yield from _expert_inputs(model, layer)
    elif model.family == "gpt_oss":
        yield _Input(_QKV, hidden)
        yield from _expert_inputs(model, layer)
    elif model.family == "gpt2":
        yield _Input(("attn.c_attn",), hidden)
        yield _Input(("mlp.c_fc",), hidden)
        yield _Input(("mlp.c_proj",), model.intermediate, divided=True)
    elif model.family == "gpt_neox":
        yield _Input(("attention.query_key_value",), hidden)
        yield _Input(("attention.dense",), hidden, divided=True)
        yield _Input(("mlp.dense_h_to_4h",), hidden)
        yield _Input(("mlp.dense_4h_to_h",), model.intermediate, divided=True)
    elif model.family == "phi":
        yield _Input((*_QKV, "mlp.fc1"), hidden)
        yield _Input(("self_attn.dense",), hidden)
        yield _Input(("mlp.fc2",), model.intermediate, divided=True)
    elif model.family == "falcon":
        yield _Input(("self_attention.query_key_value",), hidden)
        yield _Input(("mlp.dense_h_to_4h",), hidden)
        yield _Input(("mlp.dense_4h_to_h",), model.intermediate, divided=True)


def _expert_inputs(model: ModelFacts, layer: Parameters) -> Iterator[_Input]:
    """The router and the shared experts read the norm's output; each expert of a token gathers it, and has its own
    product.
    """
    named = {parameter.name.removesuffix(".weight") for parameter in layer if parameter.name.startswith("mlp.")}
    yield _Input(tuple(sorted(named)), model.hidden)
    yield _Input(("mlp.experts.gate_up_proj",), model.experts_per_token * model.hidden)
    yield _Input(("mlp.experts.down_proj",), model.experts_per_token * model.intermediate, divided=True)
    if model.shared:
        yield _Input(("mlp.shared_expert.down_proj",), model.shared, divided=True)
