# SPDX-License-Identifier: Apache-2.0
"""The readable part of a run spec with mistakes, so that combinations are checked in the same pass.

Keys that cannot be read are left out. Whoever reads one of them gets `UnreadableKeyError`, never its default: a gate
that depends on such a key says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from harness import input_limits
from harness.errors import UnreadableKeyError
from harness.spec.parse.source import KeyPath, Source, copy_values, join_key, split_key, value_at
from harness.spec.pydantic_errors import path_of_location
from harness.spec.run_spec import RunSpec, Section
from harness.spec.section_fields import inner_model
from harness.spec.suggestions import Suggestions
from harness.spec.unknown_keys import find_meant_key

_S = TypeVar("_S", bound=Section)
_MAX_ROUNDS = 3
_STAND_INS: Mapping[KeyPath, Any] = {("zero", "stage"): 0}
"""Values for required keys of sections that are worth reading without them. Nobody sees them."""
_BLOCK_PATHS: Mapping[str, tuple[KeyPath, ...]] = {
    "zero_optimization": (("zero",), ("deepspeed", "zero_optimization")),
    "fp16": (("precision",), ("deepspeed", "fp16")),
    "bf16": (("precision",), ("deepspeed", "bf16")),
    "optimizer": (("optimizer",), ("deepspeed", "optimizer")),
    "scheduler": (("scheduler",), ("deepspeed", "scheduler")),
}


class PartialSpec(NamedTuple):
    """The readable part of a run spec, and the paths of the spec that cannot be read."""

    spec: RunSpec
    unreadable: frozenset[KeyPath]


class PartialSource(Source):
    """A file without its unreadable keys: `data` lacks them, and `has_key` refuses to answer for them."""

    unreadable: frozenset[KeyPath]

    def has_key(self, key: str) -> bool:
        """Is the key written in the file? Raises UnreadableKeyError where the spelling leaves that open."""
        require_readable(split_key(key), self.unreadable)
        return super().has_key(key)


def read_partial_spec(raw: Mapping[str, Any], error: ValidationError) -> PartialSpec | None:
    """The spec without the keys of `error`; None where nothing can be made of the rest."""
    values = copy_values(dict(raw))
    unreadable: set[KeyPath] = set()
    suggestions = Suggestions()
    for _ in range(_MAX_ROUNDS):
        items = error.errors(include_url=False, include_context=False, include_input=False)
        if len(items) > input_limits.FINDINGS:  # no spec of a run
            return None
        for item in items:
            path = path_of_location(item["loc"])
            if not path:
                return None
            unreadable |= _drop_key(values, path, item["type"], suggestions)
        try:
            spec = RunSpec.model_validate(values)
        except ValidationError as next_error:
            error = next_error
        else:
            return guard_spec(spec, unreadable)
    return None


def guard_spec(spec: RunSpec, unreadable: Collection[KeyPath]) -> PartialSpec:
    """The same spec without the fields at `unreadable`: to read one raises UnreadableKeyError."""
    return PartialSpec(_without_fields(spec, (), unreadable), frozenset(unreadable))


def guard_source(source: Source, unreadable: frozenset[KeyPath]) -> PartialSource:
    """The same file without the keys of the spec's paths `unreadable`."""
    data = copy_values(source.data)
    for path in unreadable:
        user_path = source.user_path(path)
        section = value_at(data, user_path[:-1]) if user_path else None
        if isinstance(section, dict):
            section.pop(str(user_path[-1]), None)
    guarded = PartialSource(*source._replace(data=data))
    guarded.unreadable = unreadable
    return guarded


def paths_of_blocks(blocks: Iterable[str]) -> frozenset[KeyPath]:
    """The paths of the run spec for blocks of a DeepSpeed JSON."""
    return frozenset(path for block in blocks for path in _BLOCK_PATHS[block])


def require_readable(path: KeyPath, unreadable: Collection[KeyPath]) -> None:
    """Raises UnreadableKeyError where the path, or a section that it is in, cannot be read."""
    if unreadable and any(path[: len(other)] == other for other in unreadable):
        raise UnreadableKeyError(join_key(path))


def _drop_key(values: dict[str, Any], path: KeyPath, kind: str, suggestions: Suggestions) -> set[KeyPath]:
    """Take the key out of the values; the paths that cannot be read without it."""
    if kind == "extra_forbidden":
        _remove(values, path)
        meant = split_key(find_meant_key(path, suggestions) or "")
        return {meant} if meant != ("",) and value_at(values, meant) is None else set()
    field = _path_of_field(path)
    if kind == "missing" and field in _STAND_INS:
        section = value_at(values, field[:-1])
        section[str(field[-1])] = _STAND_INS[field]
    elif kind == "missing":
        field = field[:-1]
        _remove(values, field)
    else:
        _remove(values, field)
    return {field}


def _path_of_field(path: KeyPath) -> KeyPath:
    """The path as far as it leads through sections: an entry of a list or a map is read with its field."""
    model: Any = RunSpec
    for depth, part in enumerate(path):
        fields = getattr(model, "model_fields", None)
        if fields is None or part not in fields:
            return path[:depth]
        annotation = fields[part].annotation
        has_entries = any(word in str(annotation) for word in ("tuple[", "list[", "dict["))
        model = None if has_entries else inner_model(annotation)
    return path


def _remove(values: dict[str, Any], path: KeyPath) -> None:
    section = value_at(values, path[:-1]) if path else None
    if isinstance(section, dict):
        section.pop(str(path[-1]), None)
    elif isinstance(section, list) and isinstance(path[-1], int):
        section[path[-1]] = {}


def _without_fields(section: _S, path: KeyPath, unreadable: Collection[KeyPath]) -> _S:
    """A copy without the fields at `unreadable`, in the sections below it too. `path` is that of the section."""
    copy = section.model_copy()
    fields = copy.__dict__  # the model is frozen, and its fields may not be set
    for name in {
        str(other[len(path)]) for other in unreadable if other[: len(path)] == path and len(other) > len(path)
    }:
        value = fields.get(name)
        if (*path, name) in unreadable:
            fields.pop(name, None)
        elif isinstance(value, Section):
            fields[name] = _without_fields(value, (*path, name), unreadable)
        elif isinstance(value, dict) and path == ():
            fields[name] = _PartialMap(value, {str(other[1]) for other in unreadable if other[0] == name and other[1:]})
    return copy


class _PartialMap(dict[str, Any]):
    """A map of values. Raises UnreadableKeyError for keys that cannot be read."""

    def __init__(self, values: Mapping[str, Any], unreadable: Collection[str]) -> None:
        super().__init__(values)
        self.unreadable = unreadable

    def __contains__(self, name: object) -> bool:
        if name in self.unreadable:
            raise UnreadableKeyError(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if name in self else None

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name in self else default
