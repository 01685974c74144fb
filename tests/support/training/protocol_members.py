# SPDX-License-Identifier: Apache-2.0
"""The differences between a Protocol and an object of another package: missing members, other types, other parameters."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, Protocol, get_args, get_origin, get_type_hints


def find_differences(protocol: type, real: object) -> list[str]:
    """One line for each member that `real` has not, or has otherwise; none where it is what the Protocol says."""
    layers = [kind for kind in protocol.__mro__ if getattr(kind, "_is_protocol", False) and kind is not Protocol]
    hints = get_type_hints(protocol)
    attributes = {name for kind in layers for name in vars(kind).get("__annotations__", {})}
    methods = {
        name: member
        for kind in reversed(layers)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__call__")
    }
    return [
        *(line for name in sorted(attributes) for line in _compare_attribute(name, hints[name], real)),
        *(line for name, method in sorted(methods.items()) for line in _compare_method(name, method, real)),
    ]


def _compare_attribute(name: str, hint: Any, real: object) -> list[str]:
    # Not by hasattr: DeepSpeed's engine answers with the model's attribute where it has none of that name.
    if name not in vars(real) and not hasattr(type(real), name):
        return [f"no {name}"]
    value = getattr(real, name)
    return [] if _is_instance(value, hint) else [f"{name} is {type(value).__name__}, not {hint}"]


def _compare_method(name: str, method: Any, real: object) -> list[str]:
    if not callable(getattr(type(real), name, None)):
        return [f"no {name}()"]
    parameters = list(inspect.signature(method).parameters.values())[1:]
    positional = [object() for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {p.name: object() for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(getattr(real, name)).bind(*positional, **keywords)
    except TypeError as error:
        return [f"{name}(): {error}"]
    return []


def _is_instance(value: object, hint: Any) -> bool:
    """As far as it can be seen: the items of a list are not looked at, and a Protocol has a comparison of its own."""
    if get_origin(hint) is UnionType:
        return any(_is_instance(value, part) for part in get_args(hint))
    kind = get_origin(hint) or hint
    if kind is Any or getattr(kind, "_is_protocol", False):
        return value is not None
    return isinstance(value, (int, float) if kind is float else NoneType if kind is None else kind)
