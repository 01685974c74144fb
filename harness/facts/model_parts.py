# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of the model families: parameters, and read access to a configuration. Names no family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

MAX_LAYERS = 10_000
MAX_COUNT = 10**12
"""Of anything in a configuration; products of it stay numbers that a float can hold."""
_PARAMETER_OF_LAYER = re.compile(r"^(.+?)\.(\d+)\.(.+)$")


class Parameter(NamedTuple):
    """One weight: its name inside the model or inside its layer, and its shape in elements."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


Parameters = tuple[Parameter, ...]
Layers = tuple[Parameters, ...]
"""One entry per layer; equal layers are one object."""
Parts = tuple[Parameters, Layers, Parameters]
"""The parameters before the layers, the layers, and the parameters after them, in the order of `named_parameters()`."""


def split_layers(parameters: Iterable[Parameter]) -> tuple[str, Parts]:
    """The path of the layers, and the parameters before, in and after them. The layers are the numbered list that holds
    most elements.
    """
    matches = [(parameter, _PARAMETER_OF_LAYER.match(parameter.name)) for parameter in parameters]
    num_elements: dict[str, int] = {}
    for parameter, match in matches:
        if match:
            num_elements[match[1]] = num_elements.get(match[1], 0) + parameter.numel
    path = max(num_elements, key=lambda name: num_elements[name], default="")
    by_index: dict[int, list[Parameter]] = {}
    before: list[Parameter] = []
    after: list[Parameter] = []
    for parameter, match in matches:
        if match and match[1] == path and int(match[2]) < MAX_LAYERS:
            by_index.setdefault(int(match[2]), []).append(Parameter(match[3], parameter.shape))
        else:
            (after if by_index else before).append(parameter)
    kinds: dict[Parameters, Parameters] = {}
    layers = tuple(kinds.setdefault(tuple(layer), tuple(layer)) for layer in by_index.values())
    return path, (tuple(before), layers, tuple(after))


class BadConfig(ValueError):
    """The configuration has a value that no model can be built from; the text says which."""


class ConfigFields:
    """Read access to a `transformers` configuration, with the family's defaults and its other names for one thing."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
        self._values = {**defaults, **{aliases.get(key, key): value for key, value in config.items()}}

    def get(self, key: str) -> Any:
        """The value as it is; None if the key is absent."""
        return self._values.get(key)

    def flag(self, key: str) -> bool:
        """Is it set and true?"""
        return bool(self._values.get(key))

    def count(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum` that a model can have; `default` is the meaning of `None`."""
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise BadConfig(f"`{key}` is `{value}` where a whole number of at least {minimum} belongs")
        if value > MAX_COUNT:
            raise BadConfig(f"`{key}` is over {MAX_COUNT:,}")
        return value

    def numbers(self, key: str) -> frozenset[int]:
        """A list of whole numbers; empty for `None`."""
        value = self._values.get(key) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
            raise BadConfig(f"`{key}` is `{value}` where a list of whole numbers belongs")
        return frozenset(value)

    @property
    def num_layers(self) -> int:
        """Layers of the language model."""
        layers = self.count("num_hidden_layers")
        if layers > MAX_LAYERS:
            raise BadConfig(f"`num_hidden_layers` is over {MAX_LAYERS:,}")
        return layers

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        heads = self.count("num_attention_heads")
        return self.count("head_dim", self.count("hidden_size") // heads or None)

    @property
    def kv_heads(self) -> int:
        """Key and value heads; as many as there are query heads unless it says otherwise."""
        return self.count("num_key_value_heads", self.count("num_attention_heads"))
