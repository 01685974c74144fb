# SPDX-License-Identifier: Apache-2.0
"""The reference of the run spec's keys in Markdown: type, default and meaning of each, from the JSON Schema; the key of
DeepSpeed's JSON that it becomes, and the findings that speak of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from harness.spec.deepspeed_mapping import json_key_of
from harness.spec.parse.source import split_key
from harness.views.gate_pages import rows_about

Schema = dict[str, Any]
HEAD = """# Keys of a run spec

Written by `harness schema --markdown` (`make pages`) from the fields in `harness/spec/`; a test compares it.
The prose, with examples, is in [spec.md](spec.md). A key that is not listed here is refused (`harness explain SP005`);
DeepSpeed's own keys go below `deepspeed:`. *JSON* is the key that DeepSpeed gets. *Findings* are those whose page
mentions the key; `harness explain ID` prints a page."""
_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}


def render_spec_reference(schema: Schema) -> str:
    """The whole page, ending without a newline: top-level keys first, then one table for each section."""
    definitions: dict[str, Schema] = schema["$defs"]
    top = {key: field for key, field in schema["properties"].items() if section_of(field) is None}
    lines = [HEAD, "", "## Top level", "", *_render_table("", top)]
    for key, field in schema["properties"].items():
        name = section_of(field)
        if name is not None:
            lines += _render_section(key, definitions[name], definitions, level=2)
    return "\n".join(lines)


def _render_section(key: str, section: Schema, definitions: dict[str, Schema], level: int) -> Iterator[str]:
    yield from ("", f"{'#' * level} `{key}`", "", _join_lines(section.get("description", "")), "")
    fields: dict[str, Schema] = section["properties"]
    yield from _render_table(f"{key}.", fields, required=section.get("required", []))
    nested = {field: name for field, value in fields.items() if (name := section_of(value)) is not None}
    shown: set[str] = set()
    for field, name in nested.items():
        if name not in shown:
            shown.add(name)
            yield from _render_section(f"{key}.{field}", definitions[name], definitions, level + 1)


def section_of(field: Schema) -> str | None:
    """The definition that a field refers to, alone or as one of its alternatives."""
    for option in (field, *field.get("anyOf", [])):
        if "$ref" in option:
            return str(option["$ref"]).rsplit("/", 1)[-1]
    return None


def _render_table(prefix: str, fields: dict[str, Schema], required: list[str] | None = None) -> Iterator[str]:
    yield "| Key | Type | Default | Meaning | JSON | Findings |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for key, field in fields.items():
        default = format_default(field)
        default = "required" if key in (required or []) else f"`{default}`" if default else ""
        json_key = json_key_of(split_key(prefix + key))
        cells = [f"`{key}`", format_type(field), default, _join_lines(field.get("description", ""))]
        cells += [f"`{json_key}`" if json_key else "", ", ".join(row.id for row in rows_about(prefix + key))]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def format_type(field: Schema) -> str:
    """A field's type in words, such as `integer, at least 1`; null is left out, as it is the default of what has it."""
    if "anyOf" in field:
        options = [format_type(option) for option in field["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(options))
    values = field.get("enum", [field["const"]] if "const" in field else [])
    if values:
        return ", ".join(f"`{value}`" for value in values)
    return "map" if "$ref" in field else _format_plain_type(field)


def _format_plain_type(field: Schema) -> str:
    if field["type"] == "array":
        items = field.get("prefixItems", [])
        return f"list of {len(items)} ({format_type(items[0])})" if items else f"list of {format_type(field['items'])}"
    if field["type"] == "object":
        values = field.get("additionalProperties")
        return f"map to {format_type(values)}" if isinstance(values, dict) else "map"
    return _TYPES[field["type"]] + "".join(_format_bounds(field))


def _format_bounds(field: Schema) -> Iterator[str]:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "pattern": "matching",
    }
    for bound, word in words.items():
        if bound in field:
            value = f"`{field[bound]}`" if bound == "pattern" else f"{field[bound]:,}".removesuffix(".0")
            yield f", {word} {value}"


def format_default(field: Schema) -> str:
    """A field's default as written in YAML; empty if it has none."""
    if field.get("default") is None:
        return ""
    return json.dumps(field["default"], ensure_ascii=False).strip('"')


def _join_lines(text: str) -> str:
    """One line: a cell of a table has no others."""
    return " ".join(text.split())
