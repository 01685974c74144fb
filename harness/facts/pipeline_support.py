# SPDX-License-Identifier: Apache-2.0
"""Support for the stages of a DeepSpeed `PipelineModule`: families of `transformers` models, and partition methods."""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.facts.model_facts import ModelFacts


class LayerClasses(NamedTuple):
    """Names of the classes of `transformers` and torch in a stack of layers, which a `type:` pattern matches."""

    decoder: str
    norm: str
    embedding: str = "Embedding"
    head: str = "Linear"


LAYER_CLASSES = {
    "gpt2": LayerClasses("GPT2Block", "LayerNorm"),
    "llama": LayerClasses("LlamaDecoderLayer", "LlamaRMSNorm"),
    "mistral": LayerClasses("MistralDecoderLayer", "MistralRMSNorm"),
    "olmo2": LayerClasses("Olmo2DecoderLayer", "Olmo2RMSNorm"),
    "phi3": LayerClasses("Phi3DecoderLayer", "Phi3RMSNorm"),
    "qwen2": LayerClasses("Qwen2DecoderLayer", "Qwen2RMSNorm"),
    "qwen3": LayerClasses("Qwen3DecoderLayer", "Qwen3RMSNorm"),
}
"""By `model_type`; `tests/training/pipeline/test_pipeline_families.py` compares them with live pipelines."""

PIPELINE_FAMILIES = tuple(LAYER_CLASSES)
"""The `model_type` of families whose forward is a plain stack of layers; `harness.runtime.pipeline.layer_layouts` has
their layouts.
"""


def layer_class_names(model: ModelFacts, tensor_parallel_size: int) -> list[str]:
    """The class of each pipeline layer, in their order: embeddings, decoder layers, the last norm, the head.

    Raises KeyError for a family that is not among `PIPELINE_FAMILIES`.
    """
    classes = LAYER_CLASSES[model.family]
    embedding = "VocabularyParallelEmbedding" if tensor_parallel_size > 1 else classes.embedding
    positions = [classes.embedding] * (len(model.before) - 1)
    head = embedding if model.tied else classes.head
    return [embedding, *positions, *[classes.decoder] * model.num_layers, classes.norm, head]


PARTITION_METHOD_PATTERN = r"^(parameters|uniform|type:[^:]+)$"
"""`partition_method` of a PipelineModule, DeepSpeed's own words. What follows `type:` is a pattern for class names."""


def compile_layer_pattern(method: str) -> re.Pattern[str]:
    """What follows `type:`, as DeepSpeed compiles it: in lower case, for names in any case. Raises re.error."""
    return re.compile(method.lower().removeprefix("type:"), re.IGNORECASE)
