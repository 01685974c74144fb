# SPDX-License-Identifier: Apache-2.0
"""Safetensors files on disk, mapped only while one tensor is copied out of them.

Mapped pages that were read count as memory of the process, and `transformers` keeps all files mapped until the whole
model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from harness.file_io import open_regular
from harness.spec.run_spec import ModelSpec


@dataclass(frozen=True)
class SafetensorsFiles:
    """The file and the shape of each tensor; nothing is read yet."""

    paths: dict[str, Path]
    shapes: dict[str, tuple[int, ...]]

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` (of the tensor's shape, in any number format) with the tensor's values."""
        with _open_file(self.paths[name]) as file:
            out.copy_(file.get_tensor(name))

    def bytes_of(self, name: str) -> int:
        """The size of the tensor in its file."""
        with _open_file(self.paths[name]) as file:
            dtype: torch.dtype = file.get_slice(name)[:0].dtype if self.shapes[name] else file.get_tensor(name).dtype
        return torch.Size(self.shapes[name]).numel() * dtype.itemsize

    def read(self, name: str) -> torch.Tensor:
        """The tensor as the file has it."""
        with _open_file(self.paths[name]) as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor.clone()


def open_safetensors(spec: ModelSpec) -> SafetensorsFiles | None:
    """The safetensors files of `model.name_or_path`, downloaded from the Hub where it is no folder; None where it has
    none (then `transformers` loads other formats). Raises OSError, ValueError and SafetensorError.
    """
    name, options = str(spec.name_or_path), {"revision": spec.revision or "main"}
    single = cached_file(name, SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False, **options)
    paths = [single] if single else []
    if not paths:
        index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False, **options)
        if index is None:
            return None
        paths = get_checkpoint_shard_files(name, index, **options)[0]
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in map(Path, paths):
        with _open_file(path) as file:
            for key in file.keys():  # noqa: SIM118
                files[key] = path
                shapes[key] = tuple(file.get_slice(key).get_shape())
    return SafetensorsFiles(files, shapes)


def _open_file(path: Path) -> safe_open:
    """Raises OSError for a pipe, which would block; the library checks header, offsets and shapes against the size."""
    open_regular(path).close()
    return safe_open(path, framework="pt", device="cpu")
