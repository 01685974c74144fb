# SPDX-License-Identifier: Apache-2.0
"""The text model inside a composite: a model that has towers for images or sound beside it.

A run trains the next token, so it builds and loads the text model alone. No family is listed: `transformers` says which
class its text configuration has, the composite on the meta device has the names of its weights, and a tiny copy of both
says whether their logits are the same. Some composites scale the logits of a text model otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
)

from harness.runtime.tiny_config import ATTEMPTS, VOCAB_SIZE, shrink_config

SOURCE_KIND = "text_part_of"
"""A field of the configuration of a text model that a run loads out of a composite: the composite's `model_type`."""
_COMPOSITE_CLASSES = (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING)
_TOKENS = (2, 24)
_ROUNDING = 1e-4
"""Of the largest logit; fp32 gives less than 1e-6."""
_MAX_TINY_PARAMETERS = 200_000_000


class TextPart(NamedTuple):
    """The configuration of a composite's text model, or None and the reason; no reason where it is no composite."""

    config: PreTrainedConfig | None
    why_not: str = ""


def find_text_part(config: PreTrainedConfig) -> TextPart:
    """The text model that a run of this composite trains. Seconds for a composite, at once for any other model."""
    text = config.get_text_config(decoder=True)
    if text is config or getattr(config, "is_encoder_decoder", False):
        return TextPart(None)
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return TextPart(None, f"`transformers` has no causal class for its text model, of type `{text.model_type}`")
    try:
        whole = build_composite(config)
        part = build_text_model(text)
        if names_in_composite(part, whole) is None:
            return TextPart(None, f"it does not hold a `{type(part).__name__}`")
        why_not = "" if is_text_part(config) else _compare_tiny_copies(config)
    except Exception as error:  # the code of a model may raise anything
        return TextPart(None, f"its text model could not be built alone: {_first_line(error)}")
    if why_not:
        return TextPart(None, why_not)
    alone = copy.deepcopy(text)
    alone.tie_word_embeddings = _is_tied(whole)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        token = [*token] if isinstance(token, tuple) else token  # as the class of Qwen3-ASR has it, and JSON does not
        if getattr(alone, name, None) is None and not (isinstance(token, int) and token >= alone.vocab_size):
            setattr(alone, name, token)
    return TextPart(alone)


def is_text_part(config: PreTrainedConfig) -> bool:
    """Does `AutoModelForCausalLM` build the text part alone of this configuration, without its towers for images or
    sound? (`auto_factory.py` of transformers decides by the same comparison.)
    """
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return False
    text_class = getattr(config, "sub_configs", {}).get("text_config")
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return text_class is not None and getattr(model_class, "config_class", None) == text_class


def build_composite(config: PreTrainedConfig) -> PreTrainedModel:
    """The whole model on the meta device, by its class in the mappings of `transformers`. Raises ValueError for none,
    and whatever the class raises.
    """
    with torch.device("meta"):
        whole: PreTrainedModel = _composite_class(config)(copy.deepcopy(config))
    whole.tie_weights()
    return whole


def build_text_model(text: PreTrainedConfig) -> PreTrainedModel:
    """The causal model of a text configuration on the meta device."""
    with torch.device("meta"):
        part: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(text))
    return part


def load_whole(folder: Path, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model of an exported folder in fp32, as its users load it: by `AutoModelForCausalLM`, and a composite without
    a class there by its own.
    """
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    is_causal = trust_remote_code or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if not is_causal and any(type(config) in mapping for mapping in _COMPOSITE_CLASSES):
        return _composite_class(config).from_pretrained(folder, dtype=torch.float32)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    return model


def names_in_composite(part: PreTrainedModel, whole: PreTrainedModel) -> dict[str, str] | None:
    """The name in the composite of each tensor of the text model; None where the composite has no such model.

    The text model or its base stands somewhere in the composite, with the same names and shapes below it; a head that
    the base lacks is the composite's own.
    """
    shapes, inside = _shapes(part), _find_module(whole, part)
    if inside is not None:
        return {name: f"{inside}.{name}" for name in shapes}
    base = next((f"{name}." for name, module in part.named_children() if module is part.base_model), None)
    inside = _find_module(whole, part.base_model)
    if base is None or inside is None:
        return None
    names = {name: f"{inside}.{name.removeprefix(base)}" for name in shapes if name.startswith(base)}
    ours, theirs = _head_name(part), _head_name(whole)
    there = _shapes(whole)
    for name in shapes.keys() - names.keys():
        owner, _, leaf = name.rpartition(".")
        if owner != ours or there.get(f"{theirs}.{leaf}") != shapes[name]:
            return None
        names[name] = f"{theirs}.{leaf}"
    return names


def rename_prefixes(sources: Mapping[str, str]) -> dict[str, str]:
    """The `key_mapping` of `from_pretrained` that turns stored names into those of the model, by what is before their
    common end. `sources`: the stored name of each of the model's.
    """
    pairs: dict[str, str] = {}
    for name, stored in sources.items():
        ours, theirs = name.split("."), stored.split(".")
        while len(ours) > 1 and len(theirs) > 1 and ours[-1] == theirs[-1]:
            ours.pop()
            theirs.pop()
        if ours != theirs:
            pairs[r"\.".join(theirs)] = ".".join(ours)
    return {f"^{stored}\\.": f"{pairs[stored]}." for stored in sorted(pairs, key=len, reverse=True)}


def _compare_tiny_copies(config: PreTrainedConfig) -> str:
    """Why a tiny copy of the text model has other logits than one of the composite; "" where it has the same."""
    reason = ""
    for shrinkage, round_up in product(ATTEMPTS, (False, True)):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            try:
                fields = shrink_config(config.to_dict(), shrinkage)
                difference = _logits_differ_by(type(config).from_dict(_round_widths(fields) if round_up else fields))
            except Exception as error:  # a shape that the model does not take
                reason = reason or f"no small copy of it answers: {_first_line(error)}"
                if "required positional argument" in str(error):  # of its forward, in whatever shape
                    break
                continue
        return f"its logits are not those of its text model: they differ by {difference:.0e}" * (difference > _ROUNDING)
    return reason


def _round_widths(fields: Any) -> Any:
    """Hidden sizes that the heads of the text divide, for configurations that refuse others."""
    text = fields.get("text_config", fields)
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")

    def replace(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: replace(item, key) for key, item in value.items()}
        return -(-hidden // heads) * heads if value == hidden and name.endswith("hidden_size") else value

    return replace(fields) if hidden and heads else fields


def _logits_differ_by(config: PreTrainedConfig) -> float:
    """The largest difference, as a part of the largest logit. Raises whatever the models raise."""
    if sum(p.numel() for p in build_composite(config).parameters()) > _MAX_TINY_PARAMETERS:
        raise ValueError("the copy is not small")
    with no_init_weights():  # which takes most of the time where towers stay large
        whole = _composite_class(config)(config).float().eval()
    whole.tie_weights()
    for parameter in whole.parameters():
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5) if parameter.dim() > 1 else parameter.uniform_(0.1, 1.1)
    part = AutoModelForCausalLM.from_config(config.get_text_config(decoder=True), dtype=torch.float32).eval()
    state = whole.state_dict()
    part.load_state_dict({name: state[there] for name, there in (names_in_composite(part, whole) or {}).items()})
    for module in (whole, part):
        if hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")
    last = min(VOCAB_SIZE, part.config.vocab_size) - 16  # the ids of images and sound come last
    inputs = {"input_ids": torch.randint(min(8, last), last, _TOKENS), "attention_mask": torch.ones(_TOKENS).long()}
    ours, theirs = (model(**inputs, use_cache=False).logits for model in (part, whole))
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _composite_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    for mapping in _COMPOSITE_CLASSES:
        if type(config) in mapping:
            return cast("type[PreTrainedModel]", mapping[type(config)])
    raise ValueError(f"`transformers` has no class for all of a `{config.model_type}`")


def _shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _find_module(whole: torch.nn.Module, module: torch.nn.Module) -> str | None:
    """The path of a module of the same class with the same tensors."""
    shapes = _shapes(module)
    alike = (path for path, each in whole.named_modules() if path and type(each) is type(module))
    return next((path for path in alike if _shapes(whole.get_submodule(path)) == shapes), None)


def _head_name(model: PreTrainedModel) -> str | None:
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head), None)


def _is_tied(model: PreTrainedModel) -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:160]}"
