# SPDX-License-Identifier: Apache-2.0
"""Are packed documents apart by their borders alone, as `sdpa_varlen` and flash attention take them?"""

from __future__ import annotations

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.errors import UserError
from harness.hostinfo.model_answers import Answer
from harness.runtime.micro_batch import MicroBatch, find_borders
from harness.runtime.model_behavior import difference_from_alone, draw_ids, first_line, logits_of, packed_positions
from harness.runtime.model_questions.small_copy import NOISE, SmallCopy
from harness.runtime.models.packed_attention import PackedAttention
from harness.runtime.models.sdpa_varlen import NAME, register_attention


def ask(small: SmallCopy) -> Answer:
    """The packed rows of the copy by `sdpa_varlen`, against each document alone by the copy's own attention."""
    if getattr(small.text_config, "attention_chunk_size", None):
        return Answer(False, "attention in chunks (`attention_chunk_size`) needs more than borders")
    register_attention()
    model = small.duplicate()
    try:
        model.set_attn_implementation(NAME)
    except ValueError as error:
        return Answer(
            False, f"it does not take another attention function: {first_line(error).partition(' through ')[0]}"
        )
    core = ALL_ATTENTION_FUNCTIONS[NAME]
    packed = PackedAttention(core, model)
    ALL_ATTENTION_FUNCTIONS[NAME] = packed
    positions, ids = packed_positions(), draw_ids()
    try:
        packed.start_forward(MicroBatch(ids, ids, positions, document_borders=find_borders(positions)), ids.device)
        logits = logits_of(model, ids, position_ids=positions)
        packed.check_layers()
    except UserError as error:
        return Answer(False, error.findings[0].message)
    except Exception as error:  # a model that computes with its mask has none
        return Answer(False, f"{type(error).__name__}: {first_line(error)}")
    finally:
        ALL_ATTENTION_FUNCTIONS[NAME] = core
    differs = difference_from_alone(small.model, logits) / float(torch.linalg.vector_norm(logits, torch.inf))
    if differs > NOISE:
        return Answer(False, f"the logits of a document differ from those that it has alone, by {differs:.0e}")
    return Answer(True, "documents have the logits that each has alone")
