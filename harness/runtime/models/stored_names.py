# SPDX-License-Identifier: Apache-2.0
"""The names of a model's weights in its files, and models that are only a part of what their files hold."""

from __future__ import annotations

from typing import cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from harness.runtime.models.safetensors_reader import SafetensorsFiles
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import ModelSpec


def is_text_part(config: PreTrainedConfig) -> bool:
    """Does `AutoModelForCausalLM` build the text part alone of this configuration, without its towers for images or
    sound? (`auto_factory.py` of transformers decides by the same comparison.)
    """
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return False
    text_class = getattr(config, "sub_configs", {}).get("text_config")
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return text_class is not None and getattr(model_class, "config_class", None) == text_class


def check_whole_export(
    model: PreTrainedModel, spec: ModelSpec, config: PreTrainedConfig, files: SafetensorsFiles | None
) -> None:
    """Raises UserError (MD165) for the text part of a model whose export could not be whole: trained tensors go under
    the names of the source, which must be a safetensors file and hold each of them as it is.
    """
    if not is_text_part(config):
        return
    reason = "its weights are not safetensors" if files is None else None
    if files is not None and match_sources(model, files) is None:
        reason = "its files hold weights that `transformers` merges or splits when it loads them"
    if reason is not None:
        raise user_error(
            "MD165",
            f"`{spec.name_or_path}` has parts beside its text model, and an export of this run could not have them all",
            key="model.name_or_path",
            notes=(reason, f"`AutoModelForCausalLM` builds its text part alone, a `{type(model).__name__}`"),
            fix="save it with `save_pretrained` of its own class by the installed `transformers`, and name that folder",
        )


def match_sources(model: PreTrainedModel, files: SafetensorsFiles) -> dict[str, str] | None:
    """The stored tensor of each name in the model, by the renaming of `transformers`; None if one must be converted."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(model)
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    renamings = cast("list[WeightRenaming]", [t for t in transforms if not isinstance(t, WeightConverter)])
    state_dict = dict(model.state_dict(keep_vars=True))
    sources: dict[str, str] = {}
    for key in files.paths:
        name, converter = rename_source_key(key, renamings, converters, model.base_model_prefix, state_dict)
        if converter is not None:
            return None
        sources[name] = key
    return sources


def names_by_parameter(model: torch.nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by the first: two or more where it is tied."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {aliases[0]: aliases for aliases in names.values()}
