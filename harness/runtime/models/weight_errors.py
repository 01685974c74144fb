# SPDX-License-Identifier: Apache-2.0
"""User errors about a folder of weights, one for all tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.runtime.user_errors import user_error
from harness.spec.run_spec import ModelSpec

_MAX_NAMES = 4


def check_missing_weights(spec: ModelSpec, missing: Collection[str]) -> None:
    """Raise UserError (MD150) when the files lack weights of the model."""
    if missing:
        raise user_error(
            "MD150",
            f"`{spec.name_or_path}` lacks {_format_count(missing)} of the model: {_format_names(sorted(missing))}",
            key="model.name_or_path",
            notes=("training would start from random values there",),
            fix="name a folder with the whole causal language model, or set `model.random_init: true`",
        )


def check_weight_shapes(spec: ModelSpec, mismatches: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Raise UserError (MD151) when tensors of the files do not have the shape that `config.json` gives them.

    `mismatches`: (stored shape, model's shape) by name.
    """
    if mismatches:
        notes = [
            f"`{name}` is {list(stored_shape)}, should be {list(model_shape)}"
            for name, (stored_shape, model_shape) in sorted(mismatches.items())[:_MAX_NAMES]
        ]
        raise user_error(
            "MD151",
            f"{_format_count(mismatches)} in `{spec.name_or_path}` do not fit its `config.json`",
            key="model.name_or_path",
            notes=tuple(notes),
            fix="give the `config.json` that belongs to these weights",
        )


def _format_count(names: Collection[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(f"`{n}`" for n in names[:_MAX_NAMES]) + more
