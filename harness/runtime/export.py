"""A Hugging Face folder out of a checkpoint of ours: safetensors shards, config, tokenizer; read back before it counts.

One process, no GPU and no DeepSpeed engine; memory holds one shard of the output at most. Samples are in `sample.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.checkpoint import HUGGING_FACE, read_manifest
from harness.runtime.refusals import refusal
from harness.runtime.rundir import sync_folder
from harness.runtime.shards import Weights, open_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHARD_BYTES = 2 << 30
_INDEX = "model.safetensors.index.json"


def export(checkpoint: Path, out: Path, dtype: str | None = None, shard_bytes: int = SHARD_BYTES) -> Path:
    """Write the Hugging Face folder `out`; it appears whole or not at all.

    `dtype`: `float32`, `bfloat16` or `float16`; default: as trained. Raises Refused (CK10x) when the
    checkpoint cannot be used or `out` is there already.
    """
    manifest = read_manifest(checkpoint)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise refusal("CK106", f"`{out}` exists", fix="name another folder, or remove it")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(checkpoint / HUGGING_FACE, temporary)
    chosen = dtype or manifest["dtype"]
    weights = open_weights(checkpoint / manifest["tag"], manifest["zero_stage"])
    _write_config(temporary, chosen)
    _write_shards(weights, temporary, DTYPES[chosen], shard_bytes)
    _verify(temporary, weights)
    if out.exists():
        out.rmdir()
    temporary.replace(out)
    sync_folder(out.parent)
    return out


def _write_config(folder: Path, dtype: str) -> None:
    """Training has switched the key-value cache off, and the number format is that of the export."""
    config = AutoConfig.from_pretrained(folder)
    config.dtype = DTYPES[dtype]
    config.use_cache = True
    config.save_pretrained(folder)


def _write_shards(weights: Weights, folder: Path, dtype: torch.dtype, shard_bytes: int) -> None:
    """`model-00001-of-0000N.safetensors` and their index; the plain name when there is one shard."""
    plans = list(_plan(weights, dtype, shard_bytes))
    places: dict[str, str] = {}
    for i, names in enumerate(plans, start=1):
        file = "model.safetensors" if len(plans) == 1 else f"model-{i:05d}-of-{len(plans):05d}.safetensors"
        tensors = {name: _cast(weights.get(name), dtype) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(names, file))
    if len(plans) > 1:
        size = sum(shape.numel() for shape in weights.shapes.values()) * dtype.itemsize
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _plan(weights: Weights, dtype: torch.dtype, shard_bytes: int) -> Iterator[list[str]]:
    """Names by shard; a tensor that is larger than a shard has one of its own."""
    names: list[str] = []
    size = 0
    for name, shape in weights.shapes.items():
        more = shape.numel() * dtype.itemsize
        if names and size + more > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += more
    if names:
        yield names


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()


def _verify(folder: Path, weights: Weights) -> None:
    """What was written has every name and shape, and `transformers` finds in it all that the architecture needs."""
    written = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            written.update({name: torch.Size(opened.get_slice(name).get_shape()) for name in opened.keys()})  # noqa: SIM118
    if written != dict(weights.shapes):
        raise RuntimeError(
            f"the export differs from the checkpoint in {sorted(set(written) ^ set(weights.shapes))[:5]}"
        )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    needed = {name for name, _ in model.named_parameters()}
    missing = needed - set(written)
    if missing:
        raise RuntimeError(f"the export lacks {sorted(missing)[:5]}")
