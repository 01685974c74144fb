# SPDX-License-Identifier: Apache-2.0
"""Safetensors files of a bounded size, and their index, under the names that `transformers` and `peft` look for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from harness.runtime.export.export_tensors import ExportTensors
from harness.units import format_bytes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHARD_BYTES = 2 << 30
MODEL_STEM = "model"
_LOG_INTERVAL_SECONDS = 5.0


def write_shards(
    tensors: ExportTensors,
    folder: Path,
    dtype: torch.dtype,
    shard_bytes: int,
    *,
    stem: str = MODEL_STEM,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """`STEM-00001-of-0000N.safetensors` and their index; the plain name when there is one file.

    It reads each tensor once, and frees it with its file.
    """
    shards = list(plan_shards(tensors, dtype, shard_bytes))
    total = sum(output_bytes(tensors, name, dtype) for name in tensors.shapes)
    weight_map: dict[str, str] = {}
    exported, logged_at = 0, time.monotonic()
    for i, names in enumerate(shards, start=1):
        file = f"{stem}.safetensors" if len(shards) == 1 else f"{stem}-{i:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(tensors, names, folder / file, dtype)
        weight_map.update(dict.fromkeys(names, file))
        exported += sum(output_bytes(tensors, name, dtype) for name in names)
        if time.monotonic() - logged_at > _LOG_INTERVAL_SECONDS or i == len(shards):
            log(f"exported {format_bytes(exported)} of {format_bytes(total)}, file {i} of {len(shards)}")
            logged_at = time.monotonic()
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_shard(tensors: ExportTensors, names: list[str], file: Path, dtype: torch.dtype) -> None:
    """Write one file; its tensors are freed when this returns."""
    shard = {
        name: tensors.get(name) if name in tensors.stored_bytes else cast_tensor(tensors.get(name), dtype)
        for name in names
    }
    save_file(shard, file, metadata={"format": "pt"})


def plan_shards(tensors: ExportTensors, dtype: torch.dtype, shard_bytes: int) -> Iterator[list[str]]:
    """Names by file; a tensor that is larger than a file has one of its own."""
    names: list[str] = []
    size = 0
    for name in tensors.shapes:
        tensor_bytes = output_bytes(tensors, name, dtype)
        if names and size + tensor_bytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor_bytes
    if names:
        yield names


def output_bytes(tensors: ExportTensors, name: str, dtype: torch.dtype) -> int:
    """Bytes in the output. Integer buffers keep their dtype, of at most 8 bytes."""
    return tensors.stored_bytes.get(name, tensors.shapes[name].numel() * dtype.itemsize)


def cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in the dtype of the export; integers keep theirs."""
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
