# SPDX-License-Identifier: Apache-2.0
"""The names in `transformers` of a pipeline's weights, by the configuration alone.

A pipeline of N decoder layers has these layers, counted from 0 (GPT-2 has one more, its position embeddings):

    0  token embedding    model.embed_tokens
    1 .. N  decoder       model.layers.0 .. model.layers.N-1
    N+1  last norm        model.norm
    N+2  head             lm_head; when tied, the embedding's weight again

Every layer keeps its module under `module`, so that `layer_03-model_states.pt` holds `module.self_attn.q_proj.weight`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harness.runtime.pipeline.layer_layouts import layout_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TIED_EMBEDDING_KEY = "embed"
"""The key of the tied embedding in `PipelineModule.tied_modules`."""
INNER_MODULE = "module"


@dataclass(frozen=True, slots=True)
class PipelinePart:
    """One layer of the pipeline. `prefix` is the module's name in `transformers`; None for a head that is tied."""

    kind: Literal["embedding", "positions", "decoder", "norm", "head"]
    prefix: str | None


def pipeline_parts(config: PreTrainedConfig) -> list[PipelinePart]:
    """The layers of the pipeline in order. Raises AttributeError for a configuration without `num_hidden_layers`."""
    layout = layout_of(config)
    parts = [PipelinePart("embedding", f"{layout.base}.{layout.embedding}")]
    if layout.positions:
        parts.append(PipelinePart("positions", f"{layout.base}.{layout.positions}"))
    parts += [PipelinePart("decoder", f"{layout.base}.{layout.layers}.{i}") for i in range(config.num_hidden_layers)]
    parts.append(PipelinePart("norm", f"{layout.base}.{layout.norm}"))
    parts.append(PipelinePart("head", None if config.tie_word_embeddings else layout.head))
    return parts


def to_transformers_name(config: PreTrainedConfig, layer: int, name: str) -> str:
    """`module.mlp.up_proj.weight` of layer 3 -> `model.layers.2.mlp.up_proj.weight`. A KeyError if unknown."""
    prefix = pipeline_parts(config)[layer].prefix
    if prefix is None or not name.startswith(f"{INNER_MODULE}."):
        raise KeyError(f"layer {layer}: {name}")
    return f"{prefix}.{name.removeprefix(f'{INNER_MODULE}.')}"


def to_transformers_parameter(config: PreTrainedConfig, name: str) -> str:
    """The same for names as `PipelineModule.named_parameters` has them: `3.module.x`, `tied_modules.embed.module.x`."""
    first, _, suffix = name.partition(".")
    if first == "tied_modules":
        return to_transformers_name(config, 0, suffix.partition(".")[2])
    return to_transformers_name(config, int(first), suffix)


def tied_names(config: PreTrainedConfig) -> dict[str, str]:
    """Weights that have no tensor of their own: name -> the name under which it is stored."""
    layout = layout_of(config)
    if not config.tie_word_embeddings:
        return {}
    return {f"{layout.head}.weight": f"{layout.base}.{layout.embedding}.weight"}
