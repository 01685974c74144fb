# SPDX-License-Identifier: Apache-2.0
"""The division of a model over tensor ranks by AutoTP: parts and what stays whole, as DeepSpeed 0.19.8 does it.

tests/training/plan/test_tensor_shards.py compares the shapes of every family with those of live engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, NamedTuple

from harness.facts import model_table
from harness.facts.model_facts import ModelFacts, once_a_model
from harness.facts.model_parts import Parameter, Parameters
from harness.facts.tensor_parallel_plans import (
    GUESSED_SPECS,
    KNOWN_STYLES,
    PRESET_SPECS,
    SCALED_EMBEDDINGS,
    UNSUPPORTED_FAMILIES,
    LayerSpec,
    LayerSpecs,
)
from harness.plan.weights.layer_specs import convert_transformers_plan, find_spec, read_layer_specs, role_of

Head = Literal["whole", "gathered", "vocabulary"]
"""The output head: on every rank; in parts whose logits are joined; in parts of the vocabulary, with the loss in parts
(a tied embedding is then the same part).
"""
_MLP_NAMES = ("mlp", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
"""Names of layers that `get_shard_size` divides evenly and not by key-value heads."""
_HEAD_NAMES = ("lm_head", "embed_out")
_LAYER_WEIGHTS = 2
"""Dimensions of a weight that AutoTP divides; fused experts have three."""


class TensorPlanChoice(NamedTuple):
    """A run's words about AutoTP's plan: `tensor_parallel.preset_model` in lower case, `.partition_config`, and
    `.vocab_parallel_lm_head`.
    """

    preset: str = ""
    partition: Mapping[str, Any] | None = None
    vocab_parallel_head: bool | None = None

    def __hash__(self) -> int:
        return hash((self.preset, self.vocab_parallel_head))  # a map has no hash

    @staticmethod
    def from_block(block: object) -> TensorPlanChoice:
        """From the `tensor_parallel` block, as DeepSpeed reads it: an unknown preset counts as none."""
        block = block if isinstance(block, Mapping) else {}
        preset, partition, head = (
            block.get(key) for key in ("preset_model", "partition_config", "vocab_parallel_lm_head")
        )
        return TensorPlanChoice(
            preset.lower() if isinstance(preset, str) and preset.lower() in PRESET_SPECS else "",
            partition if isinstance(partition, Mapping) and partition else None,
            head if isinstance(head, bool) else None,
        )


_KNOWN_FAMILIES = {*GUESSED_SPECS, *UNSUPPORTED_FAMILIES}
DEFAULT_PLAN = TensorPlanChoice()
"""Says nothing: the plan of `transformers` counts."""


@dataclass(frozen=True)
class TensorShard:
    """The division of one model over `degree` tensor ranks.

    `specs`: the layer specs that DeepSpeed follows. `refusal`: why the engine is not built, empty where it is; nothing
    is divided then. `kv_heads`: the heads that attention is dealt out by. `is_known`: the run brings a plan, or that of
    the family is among the facts; of other families nothing here is right.
    """

    model: ModelFacts = field(repr=False)
    degree: int
    specs: LayerSpecs
    head: Head
    kv_heads: int
    refusal: str = ""
    is_known: bool = True

    @cached_property
    def is_useful(self) -> bool:
        """Does it train, right, with something of the layers divided? Of a family without a known plan: where it has no
        experts, which AutoTP divides in no known family.
        """
        if not self.is_known:
            return not self.model.experts
        return self.divides_layers and not (self.refusal or self.fails_in_forward or self.splits_latent_keys)

    @property
    def fails_in_forward(self) -> bool:
        """Falcon with one key-value head, which is cut with the queries, or with parallel branches without biases, of
        which one is added in place to what AutoTP has all-reduced.
        """
        if self.model.family != "falcon" or not self.divides_layers:
            return False
        names = {parameter.name for parameter in self.model.largest_layer}
        is_parallel = "post_attention_layernorm.weight" not in names
        return self.model.kv_heads == 1 or (is_parallel and "mlp.dense_4h_to_h.bias" not in names)

    @property
    def splits_latent_keys(self) -> bool:
        """Are heads divided that share one rotary key (DeepSeek)? No rank has its whole gradient then."""
        return self.model.latent is not None and any(
            role == "column" and parameter.name.startswith("self_attn.kv_b_proj")
            for role, parameter in self._layer_weights()
        )

    @property
    def divides_layers(self) -> bool:
        """Is any weight of the layers divided? If not, all tensor ranks repeat each other's work."""
        return any(role == "row" for role, _ in self._layer_weights())

    @cached_property
    def divides_mlp(self) -> bool:
        """Are all matrices of the MLPs divided, experts too? The router is not counted."""
        mlp = [
            role
            for role, parameter in self._layer_weights()
            if "mlp." in parameter.name and parameter.numel >= self.model.hidden * self.model.intermediate
        ]
        return bool(mlp) and "whole" not in mlp

    @cached_property
    def reduced_width(self) -> tuple[int, int]:
        """Elements a token that tensor ranks all-reduce (forward, backward) without recomputation: the outputs of what
        is divided by row and of an embedding divided over the vocabulary, and the gradients of the inputs of what is
        divided by column, each on its own, the head too.
        """
        if self.degree == 1:
            return 0, 0
        alike = Counter(map(id, self.model.layers))
        forward = self.model.hidden * (self.head == "vocabulary" and self.model.tied)
        backward = self.model.hidden * (self.head != "whole")
        for index, layer in self._kinds():
            for role, parameter in self._weights_of(index, layer):
                forward += alike[id(layer)] * parameter.shape[0] * (role == "row")
                backward += alike[id(layer)] * parameter.shape[1] * (role == "column")
        return forward, backward

    @cached_property
    def repeated_share(self) -> float:
        """The share of a token's multiplied parameters that every rank multiplies; the others they share out."""
        alike = Counter(map(id, self.model.layers))
        active = self.model.experts_per_token / self.model.experts if self.model.experts else 1.0
        whole = divided = 0.0
        for index, layer in self._kinds():
            for role, parameter in self._weights_of(index, layer):
                numel = alike[id(layer)] * parameter.numel * (active if ".experts." in parameter.name else 1.0)
                whole, divided = (whole + numel, divided) if role == "whole" else (whole, divided + numel)
        head = self.model.vocab * self.model.hidden
        whole, divided = (whole + head, divided) if self.head == "whole" else (whole, divided + head)
        return whole / (whole + divided)

    def _kinds(self) -> Iterator[tuple[int, Parameters]]:
        """One layer of each kind with its index."""
        kinds: set[int] = set()
        for index, layer in enumerate(self.model.layers):
            if id(layer) not in kinds:
                kinds.add(id(layer))
                yield index, layer

    def _weights_of(self, index: int, layer: Parameters) -> Iterator[tuple[str, Parameter]]:
        """(role, matrix) of a layer."""
        for parameter in layer:
            if len(parameter.shape) >= _LAYER_WEIGHTS and not parameter.name.endswith("bias"):
                full_name = f"{self.model.layer_path}.{index}.{parameter.name}"
                yield self.role_of(full_name) if len(parameter.shape) == _LAYER_WEIGHTS else "whole", parameter

    def _layer_weights(self) -> Iterator[tuple[str, Parameter]]:
        for index, layer in self._kinds():
            yield from self._weights_of(index, layer)

    def role_of(self, name: str) -> str:
        """`row` or `column` for a weight, or the bias of a column, that is divided; `whole` for everything else."""
        spec = None if self.degree == 1 or self.refusal else self._spec_of(name)
        role = "skip" if spec is None else role_of(spec)
        if role == "row" and name.endswith(".bias"):
            return "whole"
        return {"row": "row", "column": "column", "gathered": "column"}.get(role, "whole")

    def local_shape(self, parameter: Parameter, rank: int = 0) -> tuple[int, ...]:
        """The shape on one tensor rank; rank 0 has the most."""
        name, shape = parameter
        if len(shape) > _LAYER_WEIGHTS or not name.endswith((".weight", ".bias")):
            return shape
        is_embedding = not name.startswith(self.model.layer_path) and self._is_tied_embedding(parameter)
        role = ("column" if self.head == "vocabulary" else "whole") if is_embedding else self.role_of(name)
        if role == "whole" or (len(shape) == 1 and name.endswith(".weight")):
            return shape
        if role == "row":
            return shape[0], self._share(shape[1], name, rank)
        parts = _sub_parameters(self._spec_of(name) or {}, shape[0])
        return (sum(self._share(part, name, rank) for part in parts), *shape[1:])

    @cached_property
    def num_local_parameters(self) -> int:
        """Elements on the first rank: each kind of layer counted once, times its number."""
        alike = Counter(map(id, self.model.layers))
        outside = sum(prod(self.local_shape(parameter)) for parameter in (*self.model.before, *self.model.after))
        inside = 0
        for index, layer in self._kinds():
            names = (f"{self.model.layer_path}.{index}.{parameter.name}" for parameter in layer)
            shapes = (self.local_shape(Parameter(name, p.shape)) for name, p in zip(names, layer, strict=True))
            inside += alike[id(layer)] * sum(map(prod, shapes))
        return outside + inside

    def local_layers(self, rank: int = 0) -> Iterator[tuple[Parameter, ...]]:
        """The layers on one rank, with the full names; layers of a kind are divided alike."""
        shapes = {
            id(layer): [
                self.local_shape(Parameter(f"{self.model.layer_path}.{index}.{p.name}", p.shape), rank) for p in layer
            ]
            for index, layer in self._kinds()
        }
        for index, layer in enumerate(self.model.layers):
            names = [f"{self.model.layer_path}.{index}.{parameter.name}" for parameter in layer]
            yield tuple(map(Parameter, names, shapes[id(layer)]))

    @cached_property
    def largest_local_layer(self) -> tuple[Parameter, ...]:
        """The largest kind of layer on the first rank."""
        kinds = self.model._replace(layers=tuple(layer for _, layer in self._kinds()))
        layers = replace(self, model=kinds).local_layers()
        return max(layers, key=lambda layer: sum(parameter.numel for parameter in layer), default=())

    def local_parameters(self, rank: int = 0) -> Iterator[Parameter]:
        """Every parameter on one rank, in the order of the model."""
        yield from (parameter._replace(shape=self.local_shape(parameter, rank)) for parameter in self.model.before)
        for layer in self.local_layers(rank):
            yield from layer
        yield from (parameter._replace(shape=self.local_shape(parameter, rank)) for parameter in self.model.after)

    def _spec_of(self, name: str) -> LayerSpec | None:
        """The spec of a weight; for a bias, the spec of its layer's weight."""
        module = name.rpartition(".")[0]
        if module in _HEAD_NAMES:
            return None if self.head == "whole" else {"partition_type": "column"}
        return find_spec(self.specs, f"{module}.weight", self.model.family)

    def _is_tied_embedding(self, parameter: Parameter) -> bool:
        return self.model.tied and parameter.shape == (self.model.vocab, self.model.hidden)

    def _share(self, size: int, name: str, rank: int) -> int:
        """Rows or columns of one rank (`module_inject/tp_shard.py` `get_shard_size`)."""
        heads = self.kv_heads
        module = name.rpartition(".")[0]
        is_even = any(part in module for part in _MLP_NAMES) or module in _HEAD_NAMES or size % heads
        if is_even or self._is_tied_embedding(Parameter(name, (size, self.model.hidden))):
            return size // self.degree + (rank < size % self.degree)
        return size * (heads // self.degree + (rank < heads % self.degree)) // heads


@once_a_model
def shard_model(model: ModelFacts, degree: int, choice: TensorPlanChoice) -> TensorShard:
    """The division that DeepSpeed makes of a model with this choice of a plan."""
    specs, refusal = _find_specs(model, choice)
    head: Head = "whole" if refusal else _head_of(model, choice, specs)
    kv_heads = model.heads if model.family == "falcon" and model.kv_heads == 1 else model.kv_heads
    has_plan = bool(choice.preset) or choice.partition is not None
    is_known = has_plan or (
        not model.built and (model.family in _KNOWN_FAMILIES or bool(model_table.tensor_plan(model.family)))
    )
    return TensorShard(model, degree, specs, head, kv_heads, refusal, is_known)


def _find_specs(model: ModelFacts, choice: TensorPlanChoice) -> tuple[LayerSpecs, str]:
    """The layer specs in effect, or why DeepSpeed has none. In DeepSpeed's order: those of the run, those of
    `transformers`, guesses.
    """
    if choice.partition is not None or choice.preset:
        own = tuple(read_layer_specs(choice.partition))
        with_preset = choice.partition is None or choice.partition.get("use_default_specs", True)
        return own + (PRESET_SPECS.get(choice.preset, ()) if with_preset else ()), ""
    family = model.family
    plan = model_table.tensor_plan(family)
    if plan:
        unknown = sorted({style for style in plan.values() if style not in KNOWN_STYLES})
        if unknown:
            return (), f"the tensor plan of `{family}` models has {', '.join(f'`{style}`' for style in unknown)}"
        if family in SCALED_EMBEDDINGS and model.tied and choice.vocab_parallel_head:
            return (), f"the embedding of `{family}` models is not one that DeepSpeed divides over the vocabulary"
        return convert_transformers_plan(plan), ""
    if family in UNSUPPORTED_FAMILIES:
        return (), f"AutoTP does not support `{family}` models"
    return GUESSED_SPECS.get(family, ()), ""


def _head_of(model: ModelFacts, choice: TensorPlanChoice, specs: LayerSpecs) -> Head:
    """The division of the output head. The plans of `transformers` join the logits of an untied head; a tied one is
    divided over the vocabulary with its embedding, or left whole. One that a plan of the run divides by row is counted
    whole.
    """
    if choice.vocab_parallel_head:
        return "vocabulary"
    spec = find_spec(specs, "lm_head.weight", model.family)
    if spec is None or role_of(spec) not in ("column", "gathered"):
        return "whole"
    if not model.tied:
        return "gathered"
    has_own_plan = choice.partition is None and not choice.preset
    keeps_tie = choice.vocab_parallel_head is None and model.family not in SCALED_EMBEDDINGS
    return "vocabulary" if has_own_plan and keeps_tie else "whole"


def _sub_parameters(spec: LayerSpec, rows: int) -> tuple[int, ...]:
    """Rows of the parts that are divided one by one: `shape` of a spec says so of fused projections."""
    shape, dim = spec.get("shape"), spec.get("partition_dim", 0)
    part = shape[dim] if isinstance(shape, list | tuple) and isinstance(dim, int) and dim < len(shape) else -1
    if isinstance(part, list | tuple):
        return tuple(size for size in part if isinstance(size, int))
    return (rows // part,) * part if isinstance(part, int) and part > 0 and not rows % part else (rows,)
