# SPDX-License-Identifier: Apache-2.0
"""The keys of `transformers` configurations that count layers, and a configuration with fewer of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers")
PER_LAYER_KEYS = ("layer_types", "mlp_layer_types")
"""Lists with an entry a layer."""


def find_key(config: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the names under which the configuration has a number."""
    return next((name for name in names if isinstance(config.get(name), int)), None)


def reduce_layers(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The configuration with `layers` layers at most; lists with an entry a layer are cut. Raises ValueError for one
    that names no number of layers.
    """
    key = find_key(config, LAYER_KEYS)
    if key is None:
        raise ValueError("no number of layers")
    count = min(layers, int(config[key]))
    cut = {name: config[name][:count] for name in PER_LAYER_KEYS if isinstance(config.get(name), list)}
    return {**config, **cut, key: count}
