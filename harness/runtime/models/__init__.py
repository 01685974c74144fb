"""The model: a `transformers` causal language model, new or pretrained, and what is done to it before training.

| Module | Does |
| --- | --- |
| `configuration` | the `transformers` configuration, checked against the tokenizer |
| `creation` | new weights, in shards at stage 3 |
| `pretrained`, `stored` | weights from a folder or the Hub: which file holds what, and whether all is there |
| `sharded` | stage 3: one tensor at a time from the file into the shards of all ranks |
| `freezing` | which parameters are trained |
| `adapters`, `merging` | LoRA through `peft`; what its tensors are called, and how they are merged |

It does not touch optimizers or data.
"""

from harness.runtime.models.lora import adapter_files
from harness.runtime.models.model_builder import build_model
from harness.runtime.models.model_config import load_config

__all__ = ["adapter_files", "build_model", "load_config"]
