# SPDX-License-Identifier: Apache-2.0
"""Packed documents in layers that are no attention: convolutions and states along a row (Qwen3.5, Granite 4).

`transformers` hands `seq_idx` and `cu_seq_lens_q` down to their kernels (`causal_conv1d`, `fla`, `mamba_ssm`), and
names the package where that is not installed: its own code for PyTorch cannot keep documents apart. Such kernels take
one row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig

from harness.runtime.model_behavior import build_small_copy, draw_ids, first_line, logits_of

_LENGTHS = (13, 19)
"""Tokens of the documents of the row."""
_ROUNDING = 1e-4
"""Of the largest logit."""


class Borders(NamedTuple):
    """Does a model keep the documents of a row apart where it gets their borders? None: not known. The reason is a
    sentence without its full stop.
    """

    apart: bool | None
    reason: str


def border_arguments(borders: tuple[int, ...], device: torch.device | str = "cpu") -> dict[str, Any]:
    """The arguments of a forward for one row with these cumulative lengths, as the kernels name them."""
    lengths = torch.tensor([last - first for first, last in pairwise(borders)])
    cu_seq_lens = torch.tensor(borders, dtype=torch.int32).to(device)
    longest = int(lengths.max())
    return {
        "seq_idx": torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), lengths)[None].to(device),
        "cu_seq_lens_q": cu_seq_lens,
        "cu_seq_lens_k": cu_seq_lens,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def ask_borders(config: PreTrainedConfig) -> Borders:
    """The answer of a small copy of the model with the kernels of this machine. Leaves the random state. Raises
    TimeoutError of the caller alone.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = build_small_copy(config, device=device)
    except ValueError as error:
        return Borders(None, str(error))
    return compare_documents(model)


def compare_documents(model: Any) -> Borders:
    """A row of two documents with their borders, against each alone."""
    borders = (0, _LENGTHS[0], sum(_LENGTHS))
    ids = draw_ids().reshape(1, -1)[:, : borders[-1]].to(model.device)
    positions = torch.cat([torch.arange(n, device=ids.device) for n in _LENGTHS])[None]
    try:
        packed = logits_of(model, ids, position_ids=positions, **border_arguments(borders, ids.device))
        alone = torch.cat([logits_of(model, part) for part in ids.split(_LENGTHS, dim=1)], dim=1)
    except TimeoutError:
        raise
    except Exception as error:  # the code of a model may raise anything, and says which kernels are missing
        line = first_line(error)
        if "can't keep packed sequences apart without" in line:
            return Borders(False, line.rstrip("."))
        return Borders(None, f"with borders it raises: {line}")
    difference = float((packed - alone).abs().max() / alone.abs().max())
    if difference > _ROUNDING:
        return Borders(False, f"with borders too the logits of documents differ from those alone, by {difference:.0e}")
    return Borders(True, "its kernels get the borders of documents")
