"""The JSON Schema of the run spec, with the docstring below each field as its description.

The docstrings are read from the source only here: at import time that would cost more than everything else.
"""

from __future__ import annotations

import ast
import inspect
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from harness.spec import model
from harness.spec.fields import BeforeValidator, Rules, Section

SCHEMA_URI = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema as a plain dict, for `json.dumps`."""
    schema: dict[str, Any] = {"$schema": SCHEMA_URI, **twin(model.RunSpec).model_json_schema()}
    docs = field_docs()
    for name, definition in {"RunSpec": schema, **schema.get("$defs", {})}.items():
        for key, field in definition.get("properties", {}).items():
            if (name, key) in docs:
                field["description"] = docs[name, key]
    for name in model.RunSpec.model_fields:  # sections are described by their class
        field = schema["properties"][name]
        reference = field.get("$ref", "").rsplit("/", 1)[-1]
        if reference:
            field.setdefault("description", schema["$defs"][reference].get("description", ""))
    schema["title"] = "harness run spec"
    return schema


def twin(section: type[Section]) -> Any:
    """The section as a pydantic model with the same fields and rules."""
    import pydantic

    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        default: Any = field.default
        if field.default_factory is not None:
            default = pydantic.Field(default_factory=_factory(field.default_factory))
        fields[name] = (_type(field.hint), default)
    config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), title=section.__name__
    )
    base = type("Base", (pydantic.BaseModel,), {"model_config": config, "__module__": __name__})
    made: Any = pydantic.create_model(section.__name__, __base__=base, __doc__=section.__doc__, **fields)
    _TWINS[section] = made
    return made


_TWINS: dict[Any, Any] = {}


def _factory(make: Any) -> Any:
    return _type(make) if isinstance(make, type) and issubclass(make, Section) else make


def _type(hint: Any) -> Any:
    """A type with pydantic's rules for ours, and twins for sections."""
    import pydantic

    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None and isinstance(hint, type) and issubclass(hint, Section):
        return _TWINS.get(hint) or twin(hint)
    if isinstance(hint, Rules):
        rules = {k: v for k, v in hint._asdict().items() if v is not None and (k != "strict" or v is False)}
        return pydantic.Field(**rules)
    if isinstance(hint, BeforeValidator):
        return pydantic.BeforeValidator(hint.func)
    if origin in (Annotated, Union, UnionType, tuple):
        general: Any = Union if origin is UnionType else origin
        return general[tuple(map(_type, arguments))]
    return hint


def field_docs() -> dict[tuple[str, str], str]:
    """(class, field) -> the string below it in `spec/model.py`."""
    docs: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(model)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, doc in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(doc, ast.Expr)
                and isinstance(doc.value, ast.Constant)
            ):
                docs[node.name, field.target.id] = inspect.cleandoc(str(doc.value.value))
    return docs
