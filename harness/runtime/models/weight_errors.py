"""What is refused about a folder of weights, told once for all tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.runtime.user_errors import user_error
from harness.spec.run_spec import ModelSpec

_MAX_NAMES = 4


def check_missing_weights(spec: ModelSpec, missing: Collection[str]) -> None:
    """Raise Refused (MD150) when there are weights of the model that the files lack."""
    if missing:
        raise user_error(
            "MD150",
            f"`{spec.name_or_path}` lacks {_format_count(missing)} of the model: {_format_names(sorted(missing))}",
            key="model.name_or_path",
            notes=("training would start from random values there",),
            fix="name a folder that holds the whole causal language model, or set `model.random_init: true`",
        )


def check_weight_shapes(spec: ModelSpec, mismatches: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Raise Refused (MD151) when tensors of the files have not the shape that `config.json` gives them.

    `other`: (stored, should be) by name.
    """
    if mismatches:
        told = [
            f"`{n}` is {list(found)}, should be {list(made)}"
            for n, (found, made) in sorted(mismatches.items())[:_MAX_NAMES]
        ]
        raise user_error(
            "MD151",
            f"{_format_count(mismatches)} in `{spec.name_or_path}` do not fit its `config.json`",
            key="model.name_or_path",
            notes=tuple(told),
            fix="give the `config.json` that belongs to these weights",
        )


def _format_count(names: Collection[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(f"`{n}`" for n in names[:_MAX_NAMES]) + more
