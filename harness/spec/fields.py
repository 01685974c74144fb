"""Typed sections of a file: what a field may hold is said by its annotation, every complaint is collected.

The small part of pydantic that a run spec needs, with the same words in the same places (`Annotated`, `Field`, error
types and locations), because importing pydantic takes longer than everything else that `validate-config` does. Values
are never converted; no field knows another. A test holds it against pydantic itself, which makes the JSON Schema.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, dataclass_transform, get_args, get_origin

Loc = tuple[int | str, ...]
Check = Callable[[Any, Loc, list[dict[str, Any]]], Any]
_BAD: Any = object()
_NONE = type(None)
_MESSAGES = {"missing": "Field required", "extra_forbidden": "Extra inputs are not permitted"}


class Rules(NamedTuple):
    """What `Field` says of a value, or where its default comes from."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    pattern: str | None = None
    strict: bool = True
    default_factory: Callable[[], Any] | None = None


def Field(  # noqa: N802  (as pydantic calls it)
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    pattern: str | None = None,
    strict: bool = True,
    default_factory: Callable[[], Any] | None = None,
) -> Any:
    """Limits inside `Annotated`, or `default_factory` as a default. `strict=False`: a tuple may be a list."""
    return Rules(ge, gt, le, lt, pattern, strict, default_factory)


class BeforeValidator(NamedTuple):
    """Inside `Annotated`: a function that sees the value first."""

    func: Callable[[Any], Any]


class FieldInfo(NamedTuple):
    """A field of a section: its type, and its default (`...`: it must be written)."""

    annotation: Any
    default: Any
    default_factory: Callable[[], Any] | None
    hint: Any
    """The annotation with what `Annotated` adds."""


class ValidationError(ValueError):
    """Everything that is wrong with the values of a section."""

    def __init__(self, title: str, found: list[dict[str, Any]]) -> None:
        self._found = found
        super().__init__(f"{len(found)} wrong in {title}: {found[0]['loc']}: {found[0]['type']}")

    def errors(self, *, include_url: bool = False) -> list[dict[str, Any]]:  # noqa: ARG002  (pydantic's signature)
        """One dict a complaint: `type`, `loc`, `input`, `msg`, and `ctx` with the limit where there is one."""
        return self._found


class _Fields:
    """The fields of a class, read from its annotations when somebody asks."""

    def __get__(self, instance: object, owner: type[Section]) -> dict[str, FieldInfo]:
        if "_fields" not in vars(owner):
            hints = typing.get_type_hints(owner, include_extras=True)
            owner._fields = {
                name: _info(owner, name, hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar
            }
        return owner._fields


class _Checks:
    """The compiled checks of a class's fields."""

    def __get__(self, instance: object, owner: type[Section]) -> dict[str, Check]:
        if "_compiled" not in vars(owner):
            owner._compiled = {name: _compile(field.hint) for name, field in owner.model_fields.items()}
        return owner._compiled


def _info(owner: type, name: str, hint: Any) -> FieldInfo:
    default = getattr(owner, name, ...)
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(default, Rules):
        return FieldInfo(inner, ..., default.default_factory, hint)
    return FieldInfo(inner, default, None, hint)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Section:
    """Common rules: unknown keys are refused, values are never converted, nothing changes after loading."""

    model_fields = _Fields()
    _checks = _Checks()
    _fields: ClassVar[dict[str, FieldInfo]]
    _compiled: ClassVar[dict[str, Check]]

    def __init__(self, **values: Any) -> None:
        found: list[dict[str, Any]] = []
        self._fill(values, (), found)
        if found:
            raise ValidationError(type(self).__name__, found)

    @classmethod
    def model_validate(cls, values: Any) -> Self:
        """The section that plain values make. Raises ValidationError."""
        found: list[dict[str, Any]] = []
        made = _section(cls)(values, (), found)
        if found:
            raise ValidationError(cls.__name__, found)
        return typing.cast(Self, made)

    def _fill(self, values: dict[str, Any], loc: Loc, found: list[dict[str, Any]]) -> None:
        checks = type(self)._checks
        for name, field in type(self).model_fields.items():
            if name in values:
                self.__dict__[name] = checks[name](values[name], (*loc, name), found)
            elif field.default_factory is not None:
                self.__dict__[name] = field.default_factory()
            elif field.default is not ...:
                self.__dict__[name] = field.default
            else:
                found.append(_error("missing", (*loc, name), values))
        self.__dict__["model_fields_set"] = frozenset(values)
        found += [
            _error("extra_forbidden", (*loc, name), value) for name, value in values.items() if name not in checks
        ]

    model_fields_set: ClassVar[frozenset[str]]
    """The fields that were written."""

    def model_dump(self, *, mode: str = "python", exclude_unset: bool = False) -> dict[str, Any]:
        """Plain values; `json` has lists for tuples, `exclude_unset` leaves out what was not written."""
        names = [name for name in type(self).model_fields if not exclude_unset or name in self.model_fields_set]
        return {name: _plain(self.__dict__[name], mode, exclude_unset) for name in names}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.model_dump().items())})"


def _plain(value: Any, mode: str, exclude_unset: bool) -> Any:
    if isinstance(value, Section):
        return value.model_dump(mode=mode, exclude_unset=exclude_unset)
    if isinstance(value, dict):
        return {k: _plain(v, mode, exclude_unset) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(v, mode, exclude_unset) for v in value]
        return tuple(items) if isinstance(value, tuple) and mode != "json" else items
    return value


def _error(kind: str, loc: Loc, value: Any, **context: Any) -> dict[str, Any]:
    return {"type": kind, "loc": loc, "input": value, "msg": _MESSAGES.get(kind, kind), "ctx": context}


def _compile(hint: Any) -> Check:
    """The check that a type means."""
    origin = get_origin(hint)
    if origin is not None:
        return _COMPOUND[origin](get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Section):
        return _section(hint)
    return _SIMPLE[hint]


def _anything(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:  # noqa: ARG001
    return value


def _annotated(arguments: tuple[Any, ...]) -> Check:
    check, extras = _compile(arguments[0]), arguments[1:]
    before = [extra.func for extra in extras if isinstance(extra, BeforeValidator)]
    rules = [extra for extra in extras if isinstance(extra, Rules)]

    def run(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
        for func in reversed(before):
            value = func(value)
        made = check(value, loc, found)
        if made is not _BAD:
            for rule in rules:
                if broken := _broken(rule, made):
                    found.append(_error(broken[0], loc, value, **broken[1]))
                    return _BAD
        return made

    return run


def _broken(rule: Rules, value: Any) -> tuple[str, dict[str, Any]] | None:
    """The first rule that a value breaks, with its limit."""
    if rule.ge is not None and not value >= rule.ge:
        return "greater_than_equal", {"ge": rule.ge}
    if rule.gt is not None and not value > rule.gt:
        return "greater_than", {"gt": rule.gt}
    if rule.le is not None and not value <= rule.le:
        return "less_than_equal", {"le": rule.le}
    if rule.lt is not None and not value < rule.lt:
        return "less_than", {"lt": rule.lt}
    if rule.pattern is not None:
        import re

        if not re.search(rule.pattern.removesuffix("$") + (r"\Z" if rule.pattern.endswith("$") else ""), value):
            return "string_pattern_mismatch", {"pattern": rule.pattern}
    return None


def _exactly(kind: type, complaint: str) -> Check:
    def run(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
        if type(value) is kind:
            return value
        found.append(_error(complaint, loc, value))
        return _BAD

    return run


def _float(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
    """Whole numbers are numbers, too; a switch is none."""
    if type(value) not in (int, float):
        found.append(_error("float_type", loc, value))
        return _BAD
    try:
        value = float(value)
    except OverflowError:
        value = float("inf")
    if not isfinite(value):
        found.append(_error("finite_number", loc, value))
        return _BAD
    return value


def _literal(words: tuple[Any, ...]) -> Check:
    quoted = [repr(word) for word in words]
    expected = " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))

    def run(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
        if isinstance(value, str) and value in words:
            return value
        found.append(_error("literal_error", loc, value, expected=expected))
        return _BAD

    return run


def _union(members: tuple[Any, ...]) -> Check:
    """The first member that fits; without one, the complaints of all, each below the member's name."""
    checks = [(_name(member), _compile(member)) for member in members if member is not _NONE]
    optional = _NONE in members

    def run(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
        if value is None and optional:
            return None
        complaints: list[dict[str, Any]] = []
        for name, check in checks:
            here: list[dict[str, Any]] = []
            made = check(value, loc if len(checks) == 1 else (*loc, name), here)
            if not here:
                return made
            complaints += here
        found += complaints
        return _BAD

    return run


def _name(member: Any) -> str:
    member = get_args(member)[0] if get_origin(member) is Annotated else member
    return member.__name__ if isinstance(member, type) and not get_args(member) else str(member)


def _map(arguments: tuple[Any, ...]) -> Check:
    check = _compile(arguments[1])

    def run(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
        if isinstance(value, dict):
            return {name: check(item, (*loc, name), found) for name, item in value.items()}
        found.append(_error("dict_type", loc, value))
        return _BAD

    return run


def _tuple(kinds: tuple[Any, ...]) -> Check:
    endless = kinds[-1] is ...
    checks = [_compile(kind) for kind in kinds if kind is not ...]

    def run(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
        if not isinstance(value, (list, tuple)):
            found.append(_error("tuple_type", loc, value))
            return _BAD
        if not endless and len(value) > len(checks):
            found.append(_error("too_long", loc, value, max_length=len(checks), actual_length=len(value)))
            return _BAD
        if not endless:
            found += [_error("missing", (*loc, at), value) for at in range(len(value), len(checks))]
        return tuple(checks[0 if endless else at](item, (*loc, at), found) for at, item in enumerate(value))

    return run


def _section(kind: type[Section]) -> Check:
    def run(value: Any, loc: Loc, found: list[dict[str, Any]]) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            found.append(_error("model_type", loc, value, class_name=kind.__name__))
            return _BAD
        made = kind.__new__(kind)
        made._fill(value, loc, found)
        return made

    return run


_SIMPLE: Mapping[Any, Check] = {
    Any: _anything,
    float: _float,
    int: _exactly(int, "int_type"),
    bool: _exactly(bool, "bool_type"),
    str: _exactly(str, "string_type"),
}
_COMPOUND: Mapping[Any, Callable[[tuple[Any, ...]], Check]] = {
    Annotated: _annotated,
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    dict: _map,
    tuple: _tuple,
}
