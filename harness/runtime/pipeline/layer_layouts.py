# SPDX-License-Identifier: Apache-2.0
"""The module names of models whose forward is a plain stack of layers. No weights here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Names of the modules, relative to the base model (`base`); the head is outside of it."""

    base: str = "model"
    embedding: str = "embed_tokens"
    positions: str | None = None
    """Learned position embeddings, added to those of the tokens, and then `dropout`."""
    dropout: str | None = None
    layers: str = "layers"
    norm: str = "norm"
    rotary: str | None = "rotary_emb"
    head: str = "lm_head"


_GPT2 = LayerLayout("transformer", "wte", "wpe", "drop", "h", "ln_f", rotary=None)


def layout_of(config: PreTrainedConfig) -> LayerLayout:
    """The layout of a `transformers` configuration, if it has one: nearly all families use the names of Llama. Whether
    such layers one by one are the model is asked of a copy (`harness.runtime.model_questions.pipeline_layers`).
    """
    return _GPT2 if config.model_type == "gpt2" else LayerLayout()


def mask_kind(config: PreTrainedConfig, layer: int) -> str:
    """The attention of a layer: as `layer_types` says, else in a window where the configuration has one."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return str(kinds[layer])
    return "sliding_attention" if getattr(config, "sliding_window", None) is not None else "full_attention"
