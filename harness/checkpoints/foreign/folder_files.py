# SPDX-License-Identifier: Apache-2.0
"""Names, sizes and links of the files of a folder that others wrote. Nothing here raises or waits.

The names that DeepSpeed gives the files of a checkpoint, 0.14 to 0.19: kind, and index along each degree.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from harness.file_io import open_regular

_ZIP_END = b"PK\x05\x06"
_MAX_COMMENT = 65_557
"""Bytes in which the end of a zip archive is found."""


def list_names(folder: Path) -> list[str]:
    """The names in a folder, in order; none where it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def size_of(file: Path) -> int:
    """Bytes of a regular file; 0 for what is none or cannot be read."""
    try:
        with open_regular(file) as stream:
            return stream.seek(0, 2)
    except (OSError, ValueError):
        return 0


def leaves_folder(file: Path) -> bool:
    """Is it a link to a file that is neither beside it nor among the `blobs` of a cache of the Hugging Face Hub?"""
    if not file.is_symlink():
        return False
    folder = Path(os.path.realpath(file.parent))
    blobs = [above.parent / "blobs" for above in folder.parents if above.name == "snapshots"]
    return Path(os.path.realpath(file)).parent not in (folder, *blobs)


def is_archive(file: Path) -> bool:
    """Does a zip archive end where this file does?"""
    try:
        with open_regular(file) as stream:
            stream.seek(max(0, stream.seek(0, 2) - _MAX_COMMENT))
            end = stream.read(_MAX_COMMENT).rpartition(_ZIP_END)
            return bool(end[1]) and len(end[2]) == 18 + int.from_bytes(end[2][16:18], "little")
    except (OSError, ValueError):
        return False


Kind = Literal["model", "optimizer", "layer", "expert", "expert optimizer"]
_NAMES: tuple[tuple[Kind, str], ...] = (
    ("model", r"(?:zero_pp_rank_(?P<data>\d{1,6})_)?mp_rank_(?P<tensor>\d{1,6})_model_states\.pt"),
    ("optimizer", r"(?:bf16_|fp16_)?zero_pp_rank_(?P<data>\d{1,6})_mp_rank_(?P<tensor>\d{1,6})_?optim_states\.pt"),
    ("layer", r"layer_(?P<layer>\d{1,6})(?:-model_(?P<tensor>\d{1,6}))?-model_states\.pt"),
    (
        "expert",
        r"(?:layer_(?P<layer>\d{1,6})_)?expert_(?P<expert>\d{1,6})_mp_rank_(?P<tensor>\d{1,6})_model_states\.pt",
    ),
    ("expert optimizer", r"expp_rank_(?P<expert>\d{1,6})_mp_rank_(?P<tensor>\d{1,6})_optim_states\.pt"),
)
"""`runtime/engine.py:_get_ckpt_name`, `_get_zero_ckpt_name`, `_get_expert_ckpt_name`; `runtime/pipe/module.py`."""


class Shard(NamedTuple):
    """A file of a DeepSpeed checkpoint; an index is None where the name has none."""

    name: str
    kind: Kind
    data: int | None = None
    tensor: int | None = None
    layer: int | None = None
    expert: int | None = None


def parse_shard(name: str) -> Shard | None:
    """The shard of this file name; None for another file."""
    for kind, pattern in _NAMES:
        match = re.fullmatch(pattern, name)
        if match:
            return Shard(name, kind, **{key: int(text) for key, text in match.groupdict().items() if text is not None})
    return None
