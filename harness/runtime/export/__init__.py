# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder from a checkpoint of any ZeRO stage, offload, tensor or pipeline degree.

    hf_export.py           the order of the steps
    model_files.py         configuration, the model's own code, adapter configuration
    export_tensors.py      the tensors of the folder, read lazily: plain, adapters merged, or adapters alone
    safetensors_writer.py  safetensors files and their index
    checkpoint_conversion.py  a checkpoint for another program; checkpoint_requests.py what a worker is asked
    export_checks.py       free space before the write, names and shapes after it, logits on request

One process, no GPU and no DeepSpeed engine. Memory holds one file of the output and one tensor of the checkpoint at
most; the checkpoint's files are mapped, so that the kernel can drop their pages.
"""

from harness.runtime.export.hf_export import ExportOptions, export_checkpoint
from harness.runtime.export.safetensors_writer import SHARD_BYTES

__all__ = ["SHARD_BYTES", "ExportOptions", "export_checkpoint"]
