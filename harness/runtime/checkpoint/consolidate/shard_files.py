"""The files of a DeepSpeed checkpoint's tag folder: by rank, memory-mapped, and read without running code from them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.runtime.patches.torch_safe_globals import allow_deepspeed_globals
from harness.runtime.user_errors import user_error

_STATES_FILE = re.compile(r"(?:bf16_|fp16_)?(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")
_LAYER_FILE = re.compile(r"layer_(\d+)-model_states\.pt")


@dataclass(frozen=True)
class RankFiles:
    """The files of one tensor rank or pipeline stage, in order of the data-parallel ranks that share its states."""

    models: list[Path] = field(default_factory=list)
    optimizers: list[Path] = field(default_factory=list)


def find_rank_files(folder: Path) -> list[RankFiles]:
    """In order of DeepSpeed's `mp_rank`: the tensor rank, or the stage of a pipeline.

    Raises Refused (CK105) when there are none.
    """
    found: dict[int, dict[str, dict[int, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _STATES_FILE.fullmatch(path.name):
            data_rank, model_rank, kind = match.groups()
            found.setdefault(int(model_rank), {"model": {}, "optim": {}})[kind][int(data_rank or 0)] = path
    ranks = [RankFiles(*([by[i] for i in sorted(by)] for by in found[m].values())) for m in sorted(found)]
    if not ranks or not all(r.models for r in ranks):
        raise user_error("CK105", f"`{folder}` has no file `*_model_states.pt`", fix="name a complete checkpoint")
    return ranks


def find_layer_files(folder: Path) -> list[tuple[int, Path]]:
    """The files of a pipeline's layers, with the number of the layer; none for other models."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _LAYER_FILE.fullmatch(path.name))]
    return sorted(found)


def load_shard(file: Path) -> dict[str, Any]:
    """Mapped, and without running code from the file. Raises Refused (CK120) when it is not what DeepSpeed writes."""
    try:
        with allow_deepspeed_globals():
            loaded: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, ValueError and EOFError here
        raise user_error(
            "CK120",
            f"`{file}` cannot be read as a shard of a checkpoint",
            notes=((str(error).strip() or type(error).__name__).splitlines()[0][:200],),
            fix="name another checkpoint",
        ) from None
    return loaded
