# SPDX-License-Identifier: Apache-2.0
"""The sections of the run spec and their keys, read from the models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from harness.spec.parse.source import KeyPath
from harness.spec.run_spec import RunSpec


def section_fields(section: KeyPath) -> tuple[str, ...]:
    """The keys that a section of the run spec knows; none for a path that is no section."""
    model: Any = RunSpec
    for part in section:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if isinstance(part, str) else None
        model = inner_model(field.annotation) if field is not None else None
        if model is None or model is dict:
            return ()
    return tuple(model.model_fields)


def list_spec_keys(model: Any = RunSpec, prefix: str = "") -> Iterator[str]:
    """Every key of the run spec by its whole name, sections too, in the order of the spec."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        inner = inner_model(field.annotation)
        if inner not in (None, dict):
            yield from list_spec_keys(inner, f"{prefix}{name}.")


def inner_model(annotation: Any) -> Any:
    """The section that a field holds, alone or as one alternative; `dict` for a map, None for a plain value."""
    candidates = list(_annotation_parts(annotation))
    model = next(
        (candidate for candidate in candidates if isinstance(candidate, type) and issubclass(candidate, BaseModel)),
        None,
    )
    if model is None and any(getattr(candidate, "__origin__", candidate) is dict for candidate in candidates):
        return dict
    return model


def _annotation_parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _annotation_parts(part)
