# SPDX-License-Identifier: Apache-2.0
"""The trainable and the frozen parameters of a run: `model.freeze`, `model.train_only`, adapters of `model.lora`.

Names and shapes are those of `peft.inject_adapter_in_model`; tests/training/plan/test_trainable_split.py compares them
with real modules. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from harness.facts.model_facts import ModelFacts, once_a_model
from harness.facts.model_parts import Parameter
from harness.spec.sections.model_spec import LoraSpec, ModelSpec

DEFAULT_TARGETS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), ("q_proj", "v_proj")),
    **dict.fromkeys(("opt", "gptj", "gpt_neo", "stablelm", "mixtral"), ("q_proj", "v_proj")),
    **dict.fromkeys(("bloom", "chatglm", "falcon", "gpt_neox"), ("query_key_value",)),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "mpt": ("Wqkv",),
    "codegen": ("qkv_proj",),
}
"""The modules that `peft` adapts where `target_modules` is left out, by `model_type`."""
_LAYER_INDEX = re.compile(r".*\.[^.]*\.(\d+)\.")
_TARGETS_OUTSIDE_EXPERTS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "out_proj", "dense"})
_CONV1D_FAMILIES = frozenset({"gpt2"})
"""Families whose matrices are stored input first."""


@dataclass(frozen=True, slots=True)
class TrainableChoice:
    """A spec's choice of the trainable parameters."""

    lora: LoraSpec | None = field(default=None, hash=False)  # it has maps, which have no hash
    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()

    @staticmethod
    def from_spec(model: ModelSpec) -> TrainableChoice | None:
        """None where everything is trained."""
        choice = TrainableChoice(model.lora, model.freeze, model.train_only)
        return None if choice == TrainableChoice() else choice


class TrainableSplit(NamedTuple):
    """The parameters in the order of the model, those of adapters included."""

    trainable: tuple[Parameter, ...]
    frozen: tuple[Parameter, ...]

    @property
    def num_trainable(self) -> int:
        """Elements that are trained."""
        return sum(parameter.numel for parameter in self.trainable)

    @property
    def num_parameters(self) -> int:
        """All elements."""
        return self.num_trainable + sum(parameter.numel for parameter in self.frozen)


_NOT_LINEAR_OF_EXPERTS = frozenset({"experts", "gate", "router"})


@once_a_model
def split_parameters(model: ModelFacts, choice: TrainableChoice | None) -> TrainableSplit:
    """Split the parameters. Adapters whose targets are not known here are at all linear layers."""
    parameters: list[tuple[Parameter, bool]] = [(parameter, True) for parameter in model.parameters()]
    if choice is None:
        return TrainableSplit(tuple(parameter for parameter, _ in parameters), ())
    if choice.lora is not None:
        known = has_known_targets(model, choice.lora)
        lora = choice.lora if known else choice.lora.model_copy(update={"target_modules": "all-linear"})
        parameters = list(_add_adapters(model, lora))
    if choice.freeze or choice.train_only:
        parameters = [(p, trainable and _is_chosen(p, model, choice)) for p, trainable in parameters]
    return TrainableSplit(
        tuple(p for p, trainable in parameters if trainable), tuple(p for p, t in parameters if not t)
    )


def has_known_targets(model: ModelFacts, lora: LoraSpec) -> bool:
    """Does the split know what is adapted? Not where `peft` has no default, nor where names may mean fused experts, nor
    of an estimated model that has no module of these names (`W_pack`).
    """
    targets = lora.target_modules or DEFAULT_TARGETS.get(model.family)
    if model.experts and not _is_all_linear(targets):
        return isinstance(targets, tuple) and _TARGETS_OUTSIDE_EXPERTS.issuperset(targets)
    modules = (parameter.name.rpartition(".")[0] for parameter in model.parameters())
    return bool(targets) and (not model.estimated or any(is_target(module, model, lora) for module in modules))


def _is_chosen(parameter: Parameter, model: ModelFacts, choice: TrainableChoice) -> bool:
    is_tied = model.tied and parameter.shape == (model.vocab, model.hidden)
    names = (parameter.name, "lm_head.weight") if is_tied else (parameter.name,)
    patterns = choice.train_only or choice.freeze
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns) == bool(choice.train_only)


def _add_adapters(model: ModelFacts, lora: LoraSpec) -> Iterator[tuple[Parameter, bool]]:
    """Every parameter with the adapters next to it, and whether it is trained."""
    for parameter in model.parameters():
        module, _, leaf = parameter.name.rpartition(".")
        if _is_saved(module, lora.modules_to_save or ()):
            yield Parameter(f"{module}.original_module.{leaf}", parameter.shape), False
            yield Parameter(f"{module}.modules_to_save.default.{leaf}", parameter.shape), True
            continue
        adapted = is_target(module, model, lora)
        is_bias = leaf == "bias" and (lora.bias == "all" or (lora.bias == "lora_only" and adapted))
        yield Parameter(f"{module}.base_layer.{leaf}" if adapted else parameter.name, parameter.shape), is_bias
        if adapted and leaf == "weight" and len(parameter.shape) == 2:
            rank, is_embedding = _rank_of(module, lora), _is_embedding(module)
            kind, suffix = ("lora_embedding", "") if is_embedding else ("lora", ".weight")
            outputs, inputs = parameter.shape
            if is_embedding or model.family in _CONV1D_FAMILIES:
                outputs, inputs = inputs, outputs
            yield Parameter(f"{module}.{kind}_A.default{suffix}", (rank, inputs)), True
            yield Parameter(f"{module}.{kind}_B.default{suffix}", (outputs, rank)), True


def is_target(module: str, model: ModelFacts, lora: LoraSpec) -> bool:
    """As `peft` compares a module's name with `target_modules`, `exclude_modules` and `layers_to_transform`."""
    if lora.exclude_modules and _has_end(module, lora.exclude_modules):
        return False
    targets = lora.target_modules or DEFAULT_TARGETS[model.family]
    if isinstance(targets, str):
        if _is_all_linear(targets):
            return _is_linear(module, model)
        return re.fullmatch(targets, module) is not None
    if not _has_end(module, targets):
        return False
    if lora.layers_to_transform is None:
        return True
    layer = _LAYER_INDEX.match(module)
    return layer is not None and int(layer[1]) in lora.layers_to_transform


def _has_end(module: str, names: Sequence[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def _is_saved(module: str, names: Iterable[str]) -> bool:
    """Is the module, or one that it is a part of, trained as a copy?"""
    parts = module.split(".")
    return any(".".join(parts[: i + 1]).endswith(name) for name in names for i in range(len(parts)))


def _is_all_linear(targets: object) -> bool:
    return isinstance(targets, str) and targets.lower() == "all-linear"


def _is_linear(module: str, model: ModelFacts) -> bool:
    """Is it a linear layer, and not the head? Vectors have no adapter, whatever their module is. Routers and fused
    experts hold their matrices themselves.
    """
    if model.experts and module.rpartition(".")[2] in _NOT_LINEAR_OF_EXPERTS:
        return False
    is_head = any(parameter.name == f"{module}.weight" for parameter in model.after)
    return not (is_head or _is_embedding(module))


def _is_embedding(module: str) -> bool:
    last = module.rpartition(".")[2]
    return "embed" in last or last in {"wte", "wpe"}


def _rank_of(module: str, lora: LoraSpec) -> int:
    for pattern, rank in lora.rank_pattern.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return rank
    return lora.r
