# SPDX-License-Identifier: Apache-2.0
"""The names of a model's weights in its files, and models that are only a part of what their files hold."""

from __future__ import annotations

from typing import cast

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from harness.runtime.models.safetensors_reader import SafetensorsFiles
from harness.runtime.text_part import SOURCE_KIND, build_composite, is_text_part, names_in_composite
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import ModelSpec


def build_source(spec: ModelSpec, config: PreTrainedConfig) -> PreTrainedModel | None:
    """The composite of `model.name_or_path` on the meta device, where `config` is that of its text part; else None.
    Raises OSError and ValueError.
    """
    if getattr(config, SOURCE_KIND, None) is None and not is_text_part(config):
        return None
    return build_composite(AutoConfig.from_pretrained(str(spec.name_or_path), revision=spec.revision))


def check_whole_export(
    model: PreTrainedModel, spec: ModelSpec, whole: PreTrainedModel | None, files: SafetensorsFiles | None
) -> None:
    """Raises UserError (MD165) for the text part of a model whose export could not be whole: trained tensors go under
    the names of the source, which must be a safetensors file and hold each of them as it is. `whole`: that model.
    """
    if whole is None:
        return
    reason = "its weights are not safetensors" if files is None else None
    if files is not None and match_sources(model, files, whole) is None:
        reason = "its files hold weights that `transformers` merges or splits when it loads them"
    if reason is not None:
        raise user_error(
            "MD165",
            f"`{spec.name_or_path}` has parts beside its text model, and an export of this run could not have them all",
            key="model.name_or_path",
            notes=(reason, f"a run trains its text part alone, a `{type(model).__name__}`"),
            fix="save it with `save_pretrained` of its own class by the installed `transformers`, and name that folder",
        )


def match_sources(
    model: PreTrainedModel, files: SafetensorsFiles, whole: PreTrainedModel | None = None
) -> dict[str, str] | None:
    """The stored tensor of each name in the model, by the renaming of `transformers`; None if one must be converted.
    `whole`: the composite whose files they are, where the model is its text part.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    stored = whole or model
    transforms = get_model_conversion_mapping(stored)
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    renamings = cast("list[WeightRenaming]", [t for t in transforms if not isinstance(t, WeightConverter)])
    state_dict = dict(stored.state_dict(keep_vars=True))
    sources: dict[str, str] = {}
    converted: set[str] = set()
    for key in files.paths:
        name, converter = rename_source_key(key, renamings, converters, stored.base_model_prefix, state_dict)
        if converter is not None:
            converted.add(name)
        sources[name] = key
    names = None if whole is None else names_in_composite(model, whole)
    if names is None:
        return None if converted else sources
    if converted & {*names.values()}:
        return None
    return {name: sources[there] for name, there in names.items() if there in sources}


def names_by_parameter(model: torch.nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by the first: two or more where it is tied."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {aliases[0]: aliases for aliases in names.values()}
