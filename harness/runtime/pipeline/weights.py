"""Pretrained weights of the layers of one stage: a rank reads its own tensors and no others.

Whether the files hold the whole model is looked at on every rank, from their headers, so that all refuse alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from harness.runtime.models.configuration import first_line
from harness.runtime.models.problems import refuse_missing, refuse_other_shapes
from harness.runtime.models.stored import Stored, open_stored
from harness.runtime.pipeline.names import INNER, Part, tied_names
from harness.runtime.refusals import refusal
from harness.spec.model import ModelSpec


class LayerWeights:
    """Where the files of `model.name_or_path` keep the weights of each layer of a pipeline.

    Raises Refused (MD102 nothing to load, MD150 weights missing, MD151 of another shape, PP102 not safetensors).
    """

    def __init__(self, spec: ModelSpec, model: Any, parts: Sequence[Part]) -> None:
        self._stored = _open(spec)
        self._places = [_places(self._stored, model, part) for part in parts]
        missing = [name for places in self._places for name, place in places.values() if place is None]
        refuse_missing(spec, missing)
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        found = {
            name: self._stored.shapes[place] for places in self._places for name, place in places.values() if place
        }
        refuse_other_shapes(spec, {n: (s, shapes[n]) for n, s in found.items() if s != shapes[n]})

    def read(self, layer: int, cover: nn.Module) -> None:
        """Fill the parameters, which have memory already; nothing for a tied head, which is sent the embedding."""
        named = dict(cover.named_parameters())
        with torch.no_grad():
            for name, (_, place) in self._places[layer].items():
                if place is not None:
                    self._stored.read(place, named[name])


def _open(spec: ModelSpec) -> Stored:
    try:
        stored = open_stored(spec)
    except (OSError, ValueError, SafetensorError) as error:
        raise refusal(
            "MD102",
            f"no weights could be loaded from `{spec.name_or_path}`",
            key="model.name_or_path",
            notes=(first_line(error),),
        ) from None
    if stored is None:
        raise refusal(
            "PP102",
            f"`{spec.name_or_path}` has no safetensors files",
            key="model.name_or_path",
            notes=("a pipeline stage reads its own weights alone, other formats can only be read whole",),
            fix="convert it once: `save_pretrained` of `transformers` writes safetensors",
        )
    return stored


def _places(stored: Stored, model: Any, part: Part) -> dict[str, tuple[str, str | None]]:
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
        places[f"{INNER}.{name}"] = full, next((c for c in choices if c in stored.files), None)
    return places
