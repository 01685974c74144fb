# SPDX-License-Identifier: Apache-2.0
"""Kernels of the Hub that a model's configuration names: `transformers` would download and import them."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedConfig


def refuse_hub_kernels(config: PreTrainedConfig) -> None:
    """Raises ValueError where a configuration, or one inside of it, names a repository as its `attn_implementation`.

    The spec's own `model.attn_implementation` takes no such name; a configuration comes with a model or a checkpoint.
    """
    value = getattr(config, "_attn_implementation", None)
    for name in value.values() if isinstance(value, Mapping) else (value,):
        if isinstance(name, str) and "/" in name:
            raise ValueError(f"`attn_implementation` is `{name[:80]}`, code of the Hub, which is never run")
    for inner in vars(config).values():
        if isinstance(inner, PreTrainedConfig):
            refuse_hub_kernels(inner)
