# SPDX-License-Identifier: Apache-2.0
"""The number of parameters of the whole model, built on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from harness.runtime.model_behavior import first_line, is_causal_class


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
