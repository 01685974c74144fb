# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of the run spec, with the docstring below each field as its description.

The docstrings are read from the source, and only here: at import time that would cost more than everything else.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

from harness.spec import run_spec, sections

SCHEMA_URI = "https://json-schema.org/draft/2020-12/schema"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def run_spec_schema() -> dict[str, Any]:
    """The schema as a plain dict, for `json.dumps`."""
    schema: dict[str, Any] = {"$schema": SCHEMA_URI, **_use_schema_keywords(run_spec.RunSpec.model_json_schema())}
    docs = field_docs()
    for name, definition in {"RunSpec": schema, **schema.get("$defs", {})}.items():
        for key, field in definition.get("properties", {}).items():
            if (name, key) in docs:
                field["description"] = docs[name, key]
    for name in run_spec.RunSpec.model_fields:  # sections are described by their class
        field = schema["properties"][name]
        reference = field.get("$ref", "").rsplit("/", 1)[-1]
        if reference:
            field.setdefault("description", schema["$defs"][reference].get("description", ""))
    schema["title"] = "harness run spec"
    return schema


def _use_schema_keywords(value: Any) -> Any:
    """Bounds by JSON Schema's names: pydantic leaves its own, which editors ignore, where a validator runs first."""
    if isinstance(value, list):
        return [_use_schema_keywords(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_type = isinstance(value.get("type"), str)  # a map of fields may have one that is called `ge`
    return {(_BOUNDS.get(key, key) if is_type else key): _use_schema_keywords(item) for key, item in value.items()}


def field_docs() -> dict[tuple[str, str], str]:
    """(class, field) -> the string below it, in `spec/run_spec.py` and `spec/sections/`."""
    docs: dict[tuple[str, str], str] = {}
    sources = [Path(run_spec.__file__), *Path(sections.__path__[0]).glob("*.py")]
    for node in [statement for source in sources for statement in ast.parse(source.read_text(encoding="utf-8")).body]:
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
