"""What is known of cutting `transformers` models into the stages of a DeepSpeed `PipelineModule`."""

from __future__ import annotations

PIPELINE_FAMILIES = ("gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")
"""The `model_type` of those whose forward is a plain stack of layers; `harness.runtime.pipeline.layer_layouts` has how."""

PARTITION_METHOD_PATTERN = r"^(parameters|uniform|type:[^:]+)$"
"""`partition_method` of a PipelineModule, DeepSpeed's own words. What follows `type:` is a pattern for class names."""
