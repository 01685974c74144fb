# SPDX-License-Identifier: Apache-2.0
"""The auto class of `transformers` that builds the model of an objective, and the head that a base checkpoint lacks."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import deepspeed
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)

from harness.run.objective_facts import facts_of

_STD = 0.02


def auto_class(objective: str | None) -> Any:
    """`AutoModelForSequenceClassification` for an objective with a head over labels; None: a causal language model."""
    return AutoModelForSequenceClassification if _has_label_head(objective) else AutoModelForCausalLM


def class_mapping(objective: str | None) -> Any:
    """The classes of `auto_class` by the class of a configuration."""
    return MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING if _has_label_head(objective) else MODEL_FOR_CAUSAL_LM_MAPPING


def _has_label_head(objective: str | None) -> bool:
    return facts_of(objective or "causal_lm").has_label_head


def head_names(model: PreTrainedModel, names: Collection[str]) -> set[str]:
    """Those of `names` that are new in this class: no part of the model's base, or none that the class has which wrote
    the files, such as BERT's pooler beside a masked language model. None for a causal language model.
    """
    mapping: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    config = type(model.config)
    if config not in mapping or not isinstance(model, mapping[config]):
        return set()
    prefix = f"{model.base_model_prefix}."
    base = {name for name in names if name.startswith(prefix)}
    written = _names_of_writer(model.config) if base else None
    return {*names} - (base if written is None else {n for n in base if {n, n.removeprefix(prefix)} & written})


def _names_of_writer(config: PreTrainedConfig) -> set[str] | None:
    """The parameters of the class in `architectures`; None where `transformers` has no such class."""
    written_by = getattr(transformers, str((config.architectures or [""])[0]), None)
    if not (isinstance(written_by, type) and issubclass(written_by, PreTrainedModel)):
        return None
    with torch.device("meta"), no_init_weights():
        return {name for name, _ in written_by(copy.deepcopy(config)).named_parameters()}


def draw_head(model: PreTrainedModel, names: Collection[str], seed: int) -> None:
    """Give the parameters of the head new values, the same on all ranks and at all stages. A collective at stage 3."""
    generator = torch.Generator().manual_seed(seed)
    std = getattr(model.config.get_text_config(), "initializer_range", None) or _STD
    for name, parameter in model.named_parameters():
        if name not in names:
            continue
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            shape = parameter.shape
            flat = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)  # of a norm, or a bias
            drawn = torch.randn(shape, generator=generator) * std if len(shape) > 1 else flat
            if parameter.numel():
                parameter.copy_(drawn)
