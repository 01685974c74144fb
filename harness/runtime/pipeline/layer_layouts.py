# SPDX-License-Identifier: Apache-2.0
"""The module names of each model family whose forward is known to be a plain stack of layers.

A family is in the table once a test has compared its pipeline with the whole model
(`tests/training/pipeline/test_pipeline_families.py`). No weights here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harness.runtime.user_errors import user_error

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
    mask: Literal["full", "window", "by-layer"] = "full"
    """Attention to all before; to a window when the configuration has one; or as `layer_types` says for each layer."""


_WINDOW, _BY_LAYER = LayerLayout(mask="window"), LayerLayout(mask="by-layer")

LAYOUTS: dict[str, LayerLayout] = {
    "gpt2": LayerLayout("transformer", "wte", "wpe", "drop", "h", "ln_f", rotary=None),
    "llama": LayerLayout(),
    "mistral": _WINDOW,
    "olmo2": LayerLayout(),
    "phi3": _WINDOW,
    "qwen2": _BY_LAYER,
    "qwen3": _BY_LAYER,
}


def layout_of(config: PreTrainedConfig) -> LayerLayout:
    """The layout of a `transformers` configuration. Raises UserError (PP101) for a family that is not in the table."""
    layout = LAYOUTS.get(config.model_type)
    if layout is None:
        raise user_error(
            "PP101",
            f"`model_type: {config.model_type}` cannot be split into pipeline stages,"
            f" only {', '.join(f'`{name}`' for name in LAYOUTS)}",
            key="parallel.pipeline_parallel_size",
            notes=("a pipeline calls layers one by one; other code of a family's forward would silently be skipped",),
            fix="set `parallel.pipeline_parallel_size: 1`, and `zero.stage: 3` for a model that is too large",
        )
    return layout
