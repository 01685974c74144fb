# SPDX-License-Identifier: Apache-2.0
"""The names that DeepSpeed gives the files of a checkpoint, 0.14 to 0.19: kind, and index along each degree."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

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
