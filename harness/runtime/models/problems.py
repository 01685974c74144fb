"""What is refused about a folder of weights, told once for all tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.runtime.refusals import refusal
from harness.spec.model import ModelSpec

_NAMED = 4


def refuse_missing(spec: ModelSpec, missing: Collection[str]) -> None:
    """Raise Refused (MD150) when there are weights of the model that the files lack."""
    if missing:
        raise refusal(
            "MD150",
            f"`{spec.name_or_path}` lacks {_count(missing)} of the model: {_some(sorted(missing))}",
            key="model.name_or_path",
            notes=("training would start from random values there",),
            fix="name a folder that holds the whole causal language model, or set `model.random_init: true`",
        )


def refuse_other_shapes(spec: ModelSpec, other: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Raise Refused (MD151) when tensors of the files have not the shape that `config.json` gives them.

    `other`: (stored, should be) by name.
    """
    if other:
        told = [
            f"`{n}` is {list(found)}, should be {list(made)}" for n, (found, made) in sorted(other.items())[:_NAMED]
        ]
        raise refusal(
            "MD151",
            f"{_count(other)} in `{spec.name_or_path}` do not fit its `config.json`",
            key="model.name_or_path",
            notes=tuple(told),
            fix="give the `config.json` that belongs to these weights",
        )


def _count(names: Collection[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"`{n}`" for n in names[:_NAMED]) + more
