# SPDX-License-Identifier: Apache-2.0
"""Support for the stages of a DeepSpeed `PipelineModule`: families of `transformers` models, and partition methods."""

from __future__ import annotations

PIPELINE_FAMILIES = ("gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")
"""The `model_type` of families whose forward is a plain stack of layers; `harness.runtime.pipeline.layer_layouts` has
their layouts.
"""

PARTITION_METHOD_PATTERN = r"^(parameters|uniform|type:[^:]+)$"
"""`partition_method` of a PipelineModule, DeepSpeed's own words. What follows `type:` is a pattern for class names."""
