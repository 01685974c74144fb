"""A Hugging Face folder out of a checkpoint of any ZeRO stage, offload, tensor or pipeline degree; read back before it
counts.

    content.py    which tensors the folder holds, each made when asked for: plain, adapters merged, or adapters alone
    writing.py    safetensors files and their index
    checking.py   what was written against what should have been; logits on request

One process, no GPU and no DeepSpeed engine. Memory holds one file of the output and one tensor of the checkpoint at
most; the checkpoint's files are mapped, so that what was read of them is the kernel's to drop. Samples are made by
`sample.py`.
"""

from harness.runtime.export.hf_export import ExportOptions, export_checkpoint
from harness.runtime.export.safetensors_writer import SHARD_BYTES

__all__ = ["SHARD_BYTES", "ExportOptions", "export_checkpoint"]
