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
from harness.facts.model_table import find_row, is_of_installed_release, release_note
from harness.hostinfo.machine import package_version
from harness.hostinfo.model_answers import Answer, ModelAnswers, ask_installed_model, unknown_answers

NOT_CAUSAL_FIX = (
    "name a causal language model (BERT and its like are one with `is_decoder: true`), or train on texts with labels: "
    "`objective: classification`"
)
TAKES_BORDERS = ("sdpa_varlen", "flash_attention_2", "flash_attention_3")
"""Attention that gets the borders of packed documents instead of a mask."""
_ATTENTION_MODE = re.compile(r"causal|bidirectional|is_decoder|is_encoder|cross_attention")
"""Fields that may turn a decoder into something else."""
_OTHER_LAYERS = re.compile(
    r"conv|mamba|ssm|(^|_)linear_|sparse_attention|recurrent|hybrid|full_attn|lru|attn_layer|block_type|state_size"
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
    if _has_other_text(config, row, questions):
        return None
    is_yes = any(row.answer_to(question).holds for question in questions)
    if questions and ((is_yes and _has_other_layers(config)) or not is_of_installed_release()):
        return None
    return None if any(row.answer_to(question).holds is None for question in questions) else _say_release(row)


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
    if row is not None and answers.causal is None and is_default and not _has_other_text(config, row, questions):
        answers = row  # the type is known, and could not be asked here
    return answers._replace(causal=True, why_causal="") if answers.causal is None and _is_decoder(config) else answers


def _say_release(row: ModelAnswers) -> ModelAnswers:
    """The same, with the release that gave each answer where another is installed."""
    note = release_note()
    if not note:
        return row
    others = {name: each._replace(reason=f"{each.reason}; {note}") for name, each in row.others.items()}
    return row._replace(why_causal=f"{row.why_causal}; {note}", why_apart=f"{row.why_apart}; {note}", others=others)


def _has_other_text(config: Mapping[str, Any], row: ModelAnswers, questions: Sequence[str]) -> bool:
    """Does a composite name a type for its text model whose answers are not those of the composite's default one?"""
    text = config.get("text_config")
    if not isinstance(text, Mapping) or "model_type" not in text:
        return False
    inner = find_row(text["model_type"])
    return inner is None or any(row.answer_to(each).holds is not inner.answer_to(each).holds for each in questions)


def packing_answer(answers: ModelAnswers, *, whole_rows: bool = True) -> Answer:
    """Are packed documents apart as a run hands them to the model: by their positions, or with their borders where the
    kernels of its layers take these? None: not known, or asked by the ranks, whose names are then the packages.

    `whole_rows`: every rank sees whole rows, through the whole model; else no rank hands on borders.
    """
    kernels = answers.answer_to("kernels")
    if answers.apart is not False or not whole_rows:
        return Answer(answers.apart, answers.why_apart)
    if kernels.holds:
        return Answer(True, kernels.reason)
    missing = [name for name in kernels.names if package_version(name) is None]
    if kernels.names and not missing:
        return Answer(None, f"the ranks ask it with {' and '.join(kernels.names)}", kernels.names)
    install = f"; `pip install {' '.join(missing)}` where the ranks run on a GPU may keep them apart" if missing else ""
    return Answer(False, answers.why_apart + install)


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
