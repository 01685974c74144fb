# SPDX-License-Identifier: Apache-2.0
"""The stages of a DeepSpeed `PipelineModule`: layers of models that are plain stacks, and partition methods."""

from __future__ import annotations

import re

from harness.facts import model_table
from harness.facts.model_facts import ModelFacts


def layer_class_names(model: ModelFacts, tensor_parallel_size: int) -> list[str]:
    """The class of each pipeline layer, in their order: embeddings, decoder layers, the last norm, the head. Empty for
    a model type that is not known to be a plain stack of layers.
    """
    row = model_table.find_row(model.family)
    answer = row.answer_to("pipeline") if row is not None else None
    if answer is None or not answer.holds:
        return []
    decoder, norm, embedding, *head = answer.names
    first = "VocabularyParallelEmbedding" if tensor_parallel_size > 1 else embedding
    positions = [embedding] * (len(model.before) - 1)
    return [first, *positions, *[decoder] * model.num_layers, norm, first if model.tied else (head or ["Linear"])[0]]


DIVIDED_IN_STAGES = frozenset({"gpt2", "olmo2", "phi3"})
"""Types that AutoTP does not divide and the rules for stages do (2026-11-28, `pytest
tests/training/pipeline/test_pipeline_families.py`).
"""

PARTITION_METHOD_PATTERN = r"^(parameters|uniform|type:[^:]+)$"
"""`partition_method` of a PipelineModule, DeepSpeed's own words. What follows `type:` is a pattern for class names."""


def compile_layer_pattern(method: str) -> re.Pattern[str]:
    """The pattern after `type:`, as DeepSpeed compiles it: in lower case, for names in any case. Raises re.error."""
    return re.compile(method.lower().removeprefix("type:"), re.IGNORECASE)
