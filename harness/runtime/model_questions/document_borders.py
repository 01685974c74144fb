# SPDX-License-Identifier: Apache-2.0
"""Are packed documents apart by their borders alone, as `sdpa_varlen` and flash attention take them? Which packages
would keep them apart in layers that are no attention? `transformers` hands such layers `seq_idx` and `cu_seq_lens_q`;
without the kernels it raises and names them.
"""

from __future__ import annotations

import inspect
import re
import sys

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.errors import UserError
from harness.hostinfo.model_answers import Answer
from harness.runtime.micro_batch import MicroBatch, find_borders
from harness.runtime.model_behavior import difference_from_alone, draw_ids, first_line, logits_of, packed_positions
from harness.runtime.model_questions.small_copy import NOISE, SmallCopy
from harness.runtime.models.packed_attention import PackedAttention
from harness.runtime.models.sdpa_varlen import NAME, register_attention
from harness.runtime.packed_kernels import compare_documents

_PACKAGES = {
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
    "(fla\\b|chunk_gated_delta_rule)": "flash-linear-attention",
}
_BORDERS = ("seq_idx", "cu_seq_lens_q")


def ask(small: SmallCopy) -> Answer:
    """The packed rows of the copy by `sdpa_varlen`, against each document alone by the copy's own attention."""
    if getattr(small.text_config, "attention_chunk_size", None):
        return Answer(False, "attention in chunks (`attention_chunk_size`) needs more than borders")
    register_attention()
    model = small.duplicate()
    try:
        model.set_attn_implementation(NAME)
    except ValueError as error:
        reason = first_line(error).partition(" through ")[0]
        return Answer(False, f"it does not take another attention function: {reason}")
    core = ALL_ATTENTION_FUNCTIONS[NAME]
    packed = PackedAttention(core, model)
    ALL_ATTENTION_FUNCTIONS[NAME] = packed
    positions, ids = packed_positions(), draw_ids()
    try:
        packed.start_forward(MicroBatch(ids, ids, positions, document_borders=find_borders(positions)), ids.device)
        logits = logits_of(model, ids, position_ids=positions)
        packed.check_layers()
    except UserError:
        raise
    except Exception as error:  # a model that computes with its mask has none
        return Answer(False, f"{type(error).__name__}: {first_line(error)}")
    finally:
        ALL_ATTENTION_FUNCTIONS[NAME] = core
    differs = difference_from_alone(small.model, logits) / float(torch.linalg.vector_norm(logits, torch.inf))
    if differs > NOISE:
        return Answer(False, f"the logits of a document differ from those that it has alone, by {differs:.0e}")
    return Answer(True, "documents have the logits that each has alone")


def ask_kernels(small: SmallCopy) -> Answer:
    """True where the borders alone do it here, without packages."""
    if small.apart:
        return Answer(True, "none is needed")
    source = inspect.getsource(sys.modules[type(small.model).__module__])
    taken = [name for name in _BORDERS if re.search(rf"\b{name}\b", source)]
    named = tuple(package for word, package in _PACKAGES.items() if re.search(rf"\b{word}", source))
    if not taken:
        return Answer(False, "none is known: its layers take neither `seq_idx` nor `cu_seq_lens_q`")
    borders = compare_documents(small.model)
    return Answer(True, borders.reason) if borders.apart else Answer(None, borders.reason, named)
