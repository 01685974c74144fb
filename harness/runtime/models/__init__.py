# SPDX-License-Identifier: Apache-2.0
"""The model: a `transformers` causal language model, new or pretrained, set up for training.

| Module | Does |
| --- | --- |
| `model_config` | the `transformers` configuration, checked against the tokenizer |
| `model_builder` | new weights, in shards at stage 3 |
| `pretrained`, `safetensors_reader`, `weight_errors` | weights from a folder or the Hub, checked for completeness |
| `zero3_weights` | stage 3: one tensor at a time from the file into the shards of all ranks |
| `trainable_parameters` | frozen and trained parameters |
| `lora`, `lora_merge` | LoRA through `peft`; the names of its tensors, and merging them |
| `quantized_base` | frozen weights in 4 bits by bitsandbytes |
| `activation_checkpointing` | recomputation in the backward pass |

It does not touch optimizers or data.
"""

from harness.runtime.models.lora import adapter_files
from harness.runtime.models.model_builder import build_model
from harness.runtime.models.model_config import load_config

__all__ = ["adapter_files", "build_model", "load_config"]
