# SPDX-License-Identifier: Apache-2.0
"""The questions in their order, put to one copy of a model."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from harness.errors import UserError
from harness.hostinfo.model_answers import Answer, unknown_answers
from harness.patches.lazy_compile import import_without_compile
from harness.runtime.model_behavior import ask_copy, build_small_copy, first_line, is_causal_class
from harness.runtime.model_questions import (
    adapted_layers,
    document_borders,
    loaded_names,
    pipeline_layers,
    sequence_group,
    tensor_plan,
    unchanged_gradients,
)
from harness.runtime.model_questions.rank_pair import MachineError, RankError
from harness.runtime.model_questions.small_copy import SmallCopy

_QUESTIONS: dict[str, Callable[[SmallCopy], Answer]] = {
    "borders": document_borders.ask,
    "kernels": document_borders.ask_kernels,
    "sequence": sequence_group.ask,
    "tensor": tensor_plan.ask,
    "pipeline": pipeline_layers.ask,
    "checkpointing": unchanged_gradients.ask_recomputed,
    "loss": unchanged_gradients.ask_in_chunks,
    "lora": adapted_layers.ask,
    "qlora": adapted_layers.ask_in_4_bits,
    "export": loaded_names.ask,
    "zero3": loaded_names.ask_at_zero3,
}
_MAX_PARAMETERS = 100_000_000
"""Of a copy in a child process, whose memory is limited."""
_PACKAGES = {"lora": ("peft",), "qlora": ("peft", "bitsandbytes")}


def ask_all(config: Any, folder: Path, report: Callable[[str, Answer], None]) -> list[str]:
    """Report each answer as soon as it is there. `folder`: for what the questions write.

    Returns the questions whose answers were lost to an accident of this machine.
    """
    text, has_class = config.get_text_config(decoder=True), is_causal_class(config)
    model, reason = None, "" if has_class else "`AutoModelForCausalLM` has no class for it"
    for part in [config] * has_class + [text] * (has_class and text is not config and is_causal_class(text)):
        try:
            model = model or build_small_copy(part, max_parameters=_MAX_PARAMETERS)
        except ValueError as error:
            reason = reason or str(error)
    if model is None:
        for name in ("causal", "apart", *_QUESTIONS):
            report(name, Answer(None if has_class or name in _QUESTIONS else False, reason))
        return []
    import_without_compile()
    try:
        first = ask_copy(model)
    except Exception as error:  # the code of a model may raise anything
        first = unknown_answers(first_line(error))
    report("causal", Answer(first.causal, first.why_causal))
    report("apart", Answer(first.apart, first.why_apart))
    small, accidents = SmallCopy(model, first.apart is True, folder), []
    for name, ask in _QUESTIONS.items():
        try:
            answer = _ask_safely(name, ask, small) if first.causal else Answer(None, "it is no causal language model")
        except MachineError as error:
            answer = Answer(None, f"ranks could not be asked here: {error}")
            accidents.append(name)
        reason = re.sub(rf"`?\b{type(model).__name__}\b`?", "the model", answer.reason.replace(f"{folder}/", ""))
        report(name, answer._replace(reason=reason))
    return accidents


def _ask_safely(name: str, ask: Callable[[SmallCopy], Answer], small: SmallCopy) -> Answer:
    """Raises MachineError alone."""
    missing = [package for package in _PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        return Answer(None, f"it can be asked only with `{'`, `'.join(missing)}`, not installed here")
    try:
        return ask(small)
    except MachineError:
        raise
    except RankError as error:
        return Answer(False, str(error))
    except UserError as error:
        return Answer(False, error.findings[0].message)
    except Exception as error:  # the code of a model may raise anything
        return Answer(None, f"{type(error).__name__}: {first_line(error)}")


def count_parameters(config: Any) -> tuple[int | None, str]:
    """(parameters, the class that was built), or None and the reason why it could not be."""
    loader: Any = AutoModelForCausalLM if is_causal_class(config) else AutoModelForImageTextToText
    if loader is AutoModelForImageTextToText and type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return None, "`AutoModelForImageTextToText` has no class for it"  # its error imports all configurations
    try:
        with torch.device("meta"):
            model = loader.from_config(config)
    except Exception as error:  # the code of a model may raise anything
        return None, f"{type(error).__name__}: {first_line(error)}"
    return sum(parameter.numel() for parameter in model.parameters()), type(model).__name__
