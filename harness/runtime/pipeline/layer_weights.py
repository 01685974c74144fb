"""Pretrained weights of the layers of one stage: a rank reads its own tensors and no others.

Whether the files hold the whole model is looked at on every rank, from their headers, so that all refuse alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from harness.runtime.models.model_config import first_error_line
from harness.runtime.models.safetensors_reader import SafetensorsFiles, open_safetensors
from harness.runtime.models.weight_errors import check_missing_weights, check_weight_shapes
from harness.runtime.pipeline.parameter_names import INNER_MODULE, PipelinePart, tied_names
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import ModelSpec


class LayerWeights:
    """Where the files of `model.name_or_path` keep the weights of each layer of a pipeline.

    Raises Refused (MD102 nothing to load, MD150 weights missing, MD151 of another shape, PP102 not safetensors).
    """

    def __init__(self, spec: ModelSpec, model: Any, parts: Sequence[PipelinePart]) -> None:
        self._files = _open_weights(spec)
        self._sources = [_weight_sources(self._files, model, part) for part in parts]
        missing = [name for places in self._sources for name, place in places.values() if place is None]
        check_missing_weights(spec, missing)
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        found = {
            name: self._files.shapes[place] for places in self._sources for name, place in places.values() if place
        }
        check_weight_shapes(spec, {n: (s, shapes[n]) for n, s in found.items() if s != shapes[n]})

    def read_layer(self, layer: int, cover: nn.Module) -> None:
        """Fill the parameters, which have memory already; nothing for a tied head, which is sent the embedding."""
        named = dict(cover.named_parameters())
        with torch.no_grad():
            for name, (_, place) in self._sources[layer].items():
                if place is not None:
                    self._files.read_into(place, named[name])


def _open_weights(spec: ModelSpec) -> SafetensorsFiles:
    try:
        stored = open_safetensors(spec)
    except (OSError, ValueError, SafetensorError) as error:
        raise user_error(
            "MD102",
            f"no weights could be loaded from `{spec.name_or_path}`",
            key="model.name_or_path",
            notes=(first_error_line(error),),
        ) from None
    if stored is None:
        raise user_error(
            "PP102",
            f"`{spec.name_or_path}` has no safetensors files",
            key="model.name_or_path",
            notes=("a pipeline stage reads its own weights alone, other formats can only be read whole",),
            fix="convert it once: `save_pretrained` of `transformers` writes safetensors",
        )
    return stored


def _weight_sources(stored: SafetensorsFiles, model: Any, part: PipelinePart) -> dict[str, tuple[str, str | None]]:
    """For each parameter of the layer: its name in `transformers`, and the one in the files (None: not there).

    Files of a base model lack its prefix, and files of a tied one may hold the head in the embedding's place.
    """
    if part.prefix is None:
        return {}
    places = {}
    for name, _ in model.get_submodule(part.prefix).named_parameters():
        full = f"{part.prefix}.{name}"
        choices = [full, full.removeprefix(f"{model.base_model_prefix}.")]
        choices += [twin for twin, owner in tied_names(model.config).items() if owner == full]
        places[f"{INNER_MODULE}.{name}"] = full, next((c for c in choices if c in stored.paths), None)
    return places
