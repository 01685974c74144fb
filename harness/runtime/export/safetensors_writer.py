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
    content: ExportTensors,
    folder: Path,
    dtype: torch.dtype,
    shard_bytes: int,
    *,
    stem: str = MODEL_STEM,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """`STEM-00001-of-0000N.safetensors` and their index; the plain name when there is one file.

    Each tensor is made once, and is let go with its file.
    """
    plans = list(plan_shards(content, dtype, shard_bytes))
    total = sum(output_bytes(content, name, dtype) for name in content.shapes)
    places: dict[str, str] = {}
    written, said = 0, time.monotonic()
    for i, names in enumerate(plans, start=1):
        file = f"{stem}.safetensors" if len(plans) == 1 else f"{stem}-{i:05d}-of-{len(plans):05d}.safetensors"
        _write_shard(content, names, folder / file, dtype)
        places.update(dict.fromkeys(names, file))
        written += sum(output_bytes(content, name, dtype) for name in names)
        if time.monotonic() - said > _LOG_INTERVAL_SECONDS or i == len(plans):
            log(f"exported {format_bytes(written)} of {format_bytes(total)}, file {i} of {len(plans)}")
            said = time.monotonic()
    if len(plans) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_shard(content: ExportTensors, names: list[str], file: Path, dtype: torch.dtype) -> None:
    """One file; its tensors are gone when this returns."""
    tensors = {name: cast_tensor(content.get(name), dtype) for name in names}
    save_file(tensors, file, metadata={"format": "pt"})


def plan_shards(content: ExportTensors, dtype: torch.dtype, shard_bytes: int) -> Iterator[list[str]]:
    """Names by file; a tensor that is larger than a file has one of its own."""
    names: list[str] = []
    size = 0
    for name in content.shapes:
        more = output_bytes(content, name, dtype)
        if names and size + more > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += more
    if names:
        yield names


def output_bytes(content: ExportTensors, name: str, dtype: torch.dtype) -> int:
    """Bytes in the output; buffers that are no floats keep their format, which is never larger than 8 bytes."""
    return content.shapes[name].numel() * dtype.itemsize


def cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In the format of the export; whole numbers stay."""
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
