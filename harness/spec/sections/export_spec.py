# SPDX-License-Identifier: Apache-2.0
"""`export`: a Hugging Face folder at the end of a run."""

from typing import Literal

from harness.spec.sections.section import FileSize, Positive, Section


class ExportSpec(Section):
    """A Hugging Face folder when training has ended (the command `harness export` makes one at any time)."""

    at_end: bool = False
    """Export the last checkpoint after training."""
    upload_to: str | None = None
    """A prefix of an object store, such as `s3://bucket/models/run-7`, to which the folder is uploaded, too."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of the exported weights. Default: that of the training."""
    max_shard_size: FileSize | None = None
    """Largest size of a safetensors file, such as `5GB`. Default: 2 GiB."""
    lora: Literal["merge", "adapter"] = "merge"
    """LoRA adapters: merged into the weights, or exported alone for `peft`."""
    verify: bool = False
    """Load the export with `transformers` and compare its logits with the checkpoint's: for models that fit in host
    memory twice.
    """
    sample_prompt: str | None = None
    """Generate a sample from the export, with this prompt."""
    sample_tokens: Positive = 128
    """Length of that sample."""
