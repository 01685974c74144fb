# SPDX-License-Identifier: Apache-2.0
"""The packages that would keep packed documents apart in layers that are no attention.

`transformers` hands `seq_idx` and `cu_seq_lens_q` to such layers; without the kernels it raises and names them.
"""

from __future__ import annotations

import inspect
import re
import sys
from itertools import pairwise

import torch

from harness.hostinfo.model_answers import Answer
from harness.runtime.micro_batch import find_borders
from harness.runtime.model_behavior import difference_from_alone, draw_ids, first_line, logits_of, packed_positions
from harness.runtime.model_questions.small_copy import NOISE, SmallCopy

_PACKAGES = {
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
    "(fla\\b|chunk_gated_delta_rule)": "flash-linear-attention",
}
_BORDERS = ("seq_idx", "cu_seq_lens_q")


def ask(small: SmallCopy) -> Answer:
    """True where the borders alone do it here, without packages."""
    if small.apart:
        return Answer(True, "none is needed")
    source = inspect.getsource(sys.modules[type(small.model).__module__])
    taken = [name for name in _BORDERS if re.search(rf"\b{name}\b", source)]
    named = tuple(package for word, package in _PACKAGES.items() if re.search(rf"\b{word}", source))
    if not taken:
        return Answer(False, "none is known: its layers take neither `seq_idx` nor `cu_seq_lens_q`")
    positions, ids = packed_positions(), draw_ids()
    borders = torch.tensor(find_borders(positions), dtype=torch.int32)
    longest = max(last - first for first, last in pairwise(borders.tolist()))
    index = (positions == 0).cumsum(1).to(torch.int32) - 1
    lengths = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_q": longest, "max_length_k": longest}
    try:
        logits = logits_of(small.model, ids, position_ids=positions, seq_idx=index, **lengths)
    except Exception as error:  # it says which kernels are missing in many ways
        return Answer(None, f"with `{'`, `'.join(taken)}` and without kernels it raises: {first_line(error)}", named)
    differs = difference_from_alone(small.model, logits) / float(logits.abs().max())
    if differs <= NOISE:
        return Answer(True, f"`{'`, `'.join(taken)}` keep them apart here")
    return Answer(None, "its layers ignore borders without kernels", named)
