# SPDX-License-Identifier: Apache-2.0
"""Is a configuration that of a causal language model, and does it keep the documents of a packed row apart?

Families whose decoders are in the tables of this package are known at once, unless a field of the configuration chooses
how they attend. Every other model is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.facts.model_families import FAMILIES, SAME_FAMILY
from harness.facts.packing_support import MIXES_PACKED_DOCUMENTS, SEPARATES_PACKED_DOCUMENTS
from harness.hostinfo.model_answers import ModelAnswers, ask_installed_model, unknown_answers

_ATTENTION_MODE = re.compile(r"causal|bidirectional|is_decoder|is_encoder|cross_attention")
"""Fields that may turn a decoder into something else."""
_DECODERS = frozenset(FAMILIES) | MIXES_PACKED_DOCUMENTS | SEPARATES_PACKED_DOCUMENTS
"""Types that were counted or run as decoders."""
_OWN_CODE = "only the ranks run its own code: they ask it before they train"


def answers_at_hand(config: Mapping[str, Any], *, packing: bool) -> ModelAnswers | None:
    """The answers of the tables; None where they lack one that is needed. `packing`: both are needed."""
    kind = config.get("model_type")
    if not _is_decoder(config) or (packing and _has_other_layers(config)):
        return None
    if kind in MIXES_PACKED_DOCUMENTS:
        return ModelAnswers(True, "", False, "it attends across the documents of a packed row")
    if kind in SEPARATES_PACKED_DOCUMENTS or not packing:
        return ModelAnswers(True, "", kind in SEPARATES_PACKED_DOCUMENTS or None, "")
    return None


def find_answers(config: Mapping[str, Any], *, packing: bool, own_code: bool = False) -> ModelAnswers:
    """The answers of the tables, else those of the model itself (seconds, or at once where they were asked before).

    `own_code`: the run allows code that the model brings, which nobody but the ranks runs.
    """
    if own_code and "auto_map" in config:
        return unknown_answers(_OWN_CODE)
    at_hand = answers_at_hand(config, packing=packing)
    if at_hand is not None:
        return at_hand
    answers = ask_installed_model(config)
    return answers._replace(causal=True, why_causal="") if answers.causal is None and _is_decoder(config) else answers


def _has_other_layers(config: Mapping[str, Any]) -> bool:
    """Does it name layers that are no attention, such as convolutions? Those behind the tables may have had none."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list | tuple):
        return False
    return not all(isinstance(kind, str) and kind.endswith("attention") for kind in kinds)


def _is_decoder(config: Mapping[str, Any]) -> bool:
    """Is it of a family that was counted and run as a decoder, with no field that may make it another kind of model?"""
    kind = config.get("model_type")
    if not isinstance(kind, str) or SAME_FAMILY.get(kind, kind) not in _DECODERS:
        return False
    inner = config.get("text_config")
    fields = [*config.items(), *(inner.items() if isinstance(inner, Mapping) else ())]
    return not any(_ATTENTION_MODE.search(name) and (value or "causal" in name) for name, value in fields)
