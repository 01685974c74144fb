# SPDX-License-Identifier: Apache-2.0
"""`checkpoint` and `export`: when the training state is saved, how much is kept, and the model folder at the end."""

from typing import Literal

from harness.spec.sections.section import FileSize, Positive, Section


class CheckpointSpec(Section):
    """When the training state is saved, and how much of it is kept."""

    save_steps: Positive | None = None
    """Save every N steps. Default: only at the end."""
    save_total_limit: Positive | None = None
    """Keep the newest N checkpoints. Default: all."""
    keep_every_steps: Positive | None = None
    """In addition to the newest, keep those of every N steps."""
    keep_best: bool = False
    """In addition to the newest, keep the evaluated one with the lowest held-out loss."""
    save_at_end: bool = True
    """Save after the last step, and when the run is asked to stop."""
    async_save: bool = False
    """Copy the state to host memory and write it in the background; needs host memory for the copy. With states on
    NVMe, or too little memory, training waits for the write."""
    on_save_error: Literal["stop", "continue"] = "stop"
    """Response to a failed save (disk full, storage gone) before the last step, or to another run at `upload_to`: end
    the run, or train on. Earlier checkpoints are kept."""
    upload_to: str | None = None
    """A prefix of an object store, such as `s3://bucket/run-7`, that only this run uses. Each checkpoint is uploaded in
    the background once it is complete on the disk; `save_total_limit` counts there, too.
    """
    verify: Literal["full", "sizes"] = "full"
    """Verification before a resume: every byte against its sha256, or names and sizes only."""


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
