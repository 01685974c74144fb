# SPDX-License-Identifier: Apache-2.0
"""The files of a DeepSpeed checkpoint's tag folder, by rank and by layer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.runtime.user_errors import user_error

_STATES_FILE = re.compile(r"(?:bf16_|fp16_)?(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")
_LAYER_FILE = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")


@dataclass(frozen=True)
class RankFiles:
    """The files of one tensor rank, of the model or of a stage, in order of the data-parallel ranks that share its
    states.
    """

    models: list[Path] = field(default_factory=list)
    optimizers: list[Path] = field(default_factory=list)


def find_rank_files(folder: Path) -> list[RankFiles]:
    """In order of DeepSpeed's `mp_rank`: the tensor ranks, of one stage of a pipeline after the other.

    Raises UserError (CK105) if there are none.
    """
    by_model_rank: dict[int, dict[str, dict[int, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _STATES_FILE.fullmatch(path.name):
            data_rank, model_rank, kind = match.groups()
            kinds = by_model_rank.setdefault(int(model_rank), {"model": {}, "optim": {}})
            kinds[kind][int(data_rank or 0)] = path
    rank_files = [
        RankFiles(*([files[i] for i in sorted(files)] for files in by_model_rank[m].values()))
        for m in sorted(by_model_rank)
    ]
    if not rank_files or not all(r.models for r in rank_files):
        raise user_error("CK105", f"`{folder}` has no file `*_model_states.pt`", fix="name a complete checkpoint")
    return rank_files


def find_layer_files(folder: Path) -> list[tuple[int, int, Path]]:
    """The files of a pipeline's layers, with the number of the layer and the tensor rank; none for other models."""
    matches = ((_LAYER_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), int(match[2] or 0), path) for match, path in matches if match)
