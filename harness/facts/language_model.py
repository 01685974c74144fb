# SPDX-License-Identifier: Apache-2.0
"""Is a configuration that of a causal language model, and what do the parts of this program do with it?

The table knows the default configuration of each model type. A model with a field that chooses how it attends is asked
itself, as is one of a type or a release that the table does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.facts.model_families import FAMILIES, SAME_FAMILY
from harness.facts.model_table import find_row, is_of_installed_release
from harness.hostinfo.model_answers import Answer, ModelAnswers, ask_installed_model, unknown_answers

TAKES_BORDERS = ("sdpa_varlen", "flash_attention_2", "flash_attention_3")
"""Attention that gets the borders of packed documents instead of a mask."""
_ATTENTION_MODE = re.compile(r"causal|bidirectional|is_decoder|is_encoder|cross_attention")
"""Fields that may turn a decoder into something else."""
_OTHER_LAYERS = re.compile(
    r"conv|mamba|ssm|(^|_)linear_|recurrent|hybrid|full_attn|lru|attn_layer|block_type|state_size"
)
"""Fields of layers that are no attention: the default configuration of a type, as LFM2's, may have none of them."""
_OWN_CODE = "only the ranks run its own code: they ask it before they train"


def answers_at_hand(config: Mapping[str, Any], questions: Sequence[str] = ()) -> ModelAnswers | None:
    """The answers of the table; None where it lacks one of these `questions`, or whether the model is causal."""
    row = find_row(config.get("model_type"))
    if row is not None and row.causal is False and not _chooses_attention(config) and is_of_installed_release():
        return row
    if not _is_decoder(config):
        return None
    if row is None or row.causal is not True:
        row = unknown_answers("it is of no type that was asked")._replace(causal=True, why_causal="")
    is_yes = any(row.answer_to(question).holds for question in questions)
    if questions and ((is_yes and _has_other_layers(config)) or not is_of_installed_release()):
        return None
    return None if any(row.answer_to(question).holds is None for question in questions) else row


def find_answers(config: Mapping[str, Any], questions: Sequence[str] = (), *, own_code: bool = False) -> ModelAnswers:
    """The answers of the table, else those of the model itself (seconds, or at once where they were asked before).

    `own_code`: the run allows code that the model brings, which nobody but the ranks runs.
    """
    if own_code and "auto_map" in config:
        return unknown_answers(_OWN_CODE)
    at_hand = answers_at_hand(config, questions)
    if at_hand is not None:
        return at_hand
    answers = ask_installed_model(config)
    row = find_row(config.get("model_type"))
    is_default = not _has_other_layers(config) and not _chooses_attention(config) and is_of_installed_release()
    if row is not None and answers.causal is None and is_default:
        answers = row  # the type is known, and could not be asked here
    return answers._replace(causal=True, why_causal="") if answers.causal is None and _is_decoder(config) else answers


def table_answer(config: Mapping[str, Any], question: str) -> Answer:
    """Of the table alone, as gates see it: of the default configuration of the type."""
    row = find_row(config.get("model_type"))
    return Answer(None, "it is of no type that was asked") if row is None else row.answer_to(question)


def _has_other_layers(config: Mapping[str, Any]) -> bool:
    """Does it name layers that are no attention, such as convolutions? Those behind the table may have had none."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and _has_other_layers(inner):
        return True
    if any(_OTHER_LAYERS.search(name) for name in config):
        return True
    kinds = config.get("layer_types")
    if not isinstance(kinds, list | tuple):
        return False
    return not all(isinstance(kind, str) and re.fullmatch(r"(?!linear_)\w*attention", kind) for kind in kinds)


def _is_decoder(config: Mapping[str, Any]) -> bool:
    """Is it of a type that was counted or asked as a decoder, with no field that may make it another kind of model?"""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return False
    row = find_row(kind)
    if SAME_FAMILY.get(kind, kind) not in FAMILIES and (row is None or row.causal is not True):
        return False
    return not _chooses_attention(config)


def _chooses_attention(config: Mapping[str, Any]) -> bool:
    """Has it a field that may turn a decoder into something else, or an encoder into a decoder?"""
    inner = config.get("text_config")
    fields = [*config.items(), *(inner.items() if isinstance(inner, Mapping) else ())]
    return any(bool(_ATTENTION_MODE.search(name) and (value or "causal" in name)) for name, value in fields)
