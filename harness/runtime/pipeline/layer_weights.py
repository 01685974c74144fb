# SPDX-License-Identifier: Apache-2.0
"""Pretrained weights of the layers of one stage: a rank reads its own tensors and no others.

Every rank checks from the headers that the files hold the whole model, so that all ranks raise together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from harness.runtime.models.safetensors_reader import SafetensorsFiles, open_safetensors
from harness.runtime.models.stored_names import build_source, check_whole_export, match_sources
from harness.runtime.models.weight_errors import check_missing_weights, check_weight_shapes
from harness.runtime.pipeline.parameter_names import INNER_MODULE, PipelinePart, tied_names
from harness.runtime.user_errors import first_error_line, user_error
from harness.spec.run_spec import ModelSpec


class LayerWeights:
    """The tensors in the files of `model.name_or_path` for each layer of a pipeline.

    Raises UserError (MD102 nothing to load, MD150 weights missing, MD151 another shape, PP102 not safetensors, MD165).
    """

    def __init__(self, spec: ModelSpec, model: PreTrainedModel, parts: Sequence[PipelinePart]) -> None:
        self._files = _open_weights(spec)
        whole = build_source(spec, model.config)
        check_whole_export(model, spec, whole, self._files)
        stored = match_sources(model, self._files, whole) if whole is not None else None
        stored = {name: name for name in self._files.paths} if stored is None else stored
        self._sources = [_weight_sources(stored, model, part) for part in parts]
        missing = [name for layer_sources in self._sources for name, source in layer_sources.values() if source is None]
        check_missing_weights(spec, missing)
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        stored_shapes = {
            name: self._files.shapes[source]
            for layer_sources in self._sources
            for name, source in layer_sources.values()
            if source
        }
        check_weight_shapes(spec, {n: (s, shapes[n]) for n, s in stored_shapes.items() if s != shapes[n]})

    def read_layer(self, layer: int, module: nn.Module) -> None:
        """Fill the parameters, which have memory already; nothing for a tied head, which receives the embedding."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, (_, source) in self._sources[layer].items():
                if source is not None:
                    self._files.read_into(source, parameters[name])


def _open_weights(spec: ModelSpec) -> SafetensorsFiles:
    try:
        files = open_safetensors(spec)
    except (OSError, ValueError, SafetensorError) as error:
        raise user_error(
            "MD102",
            f"no weights could be loaded from `{spec.name_or_path}`",
            key="model.name_or_path",
            notes=(first_error_line(error),),
        ) from None
    if files is None:
        raise user_error(
            "PP102",
            f"`{spec.name_or_path}` has no safetensors files",
            key="model.name_or_path",
            notes=("a pipeline stage reads only its own weights; other formats must be read as a whole",),
            fix="convert it once: `save_pretrained` of `transformers` writes safetensors",
        )
    return files


def _weight_sources(
    stored: Mapping[str, str], model: PreTrainedModel, part: PipelinePart
) -> dict[str, tuple[str, str | None]]:
    """For each parameter of the layer: its name in `transformers`, and its name in the files, None if missing.
    `stored`: the names in the files, by those of the model.

    Files of a base model lack its prefix, and files of a tied one may hold the head in place of the embedding.
    """
    if part.prefix is None:
        return {}
    sources = {}
    for name, _ in model.get_submodule(part.prefix).named_parameters():
        full_name = f"{part.prefix}.{name}"
        candidates = [full_name, full_name.removeprefix(f"{model.base_model_prefix}.")]
        candidates += [alias for alias, owner in tied_names(model.config).items() if owner == full_name]
        sources[f"{INNER_MODULE}.{name}"] = (
            full_name,
            next((stored[candidate] for candidate in candidates if candidate in stored), None),
        )
    return sources
