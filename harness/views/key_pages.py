# SPDX-License-Identifier: Apache-2.0
"""The page of a key or a section of the run spec, for `harness explain KEY`; terms of distributed training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from harness.entry_file import read_entries
from harness.facts.deepspeed_keys import block_keys
from harness.spec.deepspeed_mapping import json_key_of, spec_field_of
from harness.spec.json_schema import run_spec_schema
from harness.spec.parse.source import split_key
from harness.spec.section_fields import list_spec_keys
from harness.spec.unknown_keys import find_foreign_name
from harness.views.gate_pages import rows_about, wrap_text
from harness.views.spec_reference import Schema, format_default, format_type, section_of

DOCS = {
    "objective": "own-models",
    "dpo": "preferences",
    "kto": "preferences",
    "classification": "classification",
    "reward": "classification",
    "model": "train",
    "data": "data",
    "train": "train",
    "optimizer": "spec",
    "scheduler": "spec",
    "precision": "spec",
    "zero": "spec",
    "parallel": "train",
    "checkpoint": "checkpointing",
    "eval": "train",
    "export": "checkpointing",
    "logging": "metrics",
    "telemetry": "metrics",
    "launch": "train",
    "plugins": "train",
    "cluster": "plan",
    "ignore": "validate",
    "tuned_defaults": "plan",
    "deepspeed": "spec",
}
"""A section or key of the top level -> the page of `docs/` with the prose about it."""
_MAX_FINDINGS = 12
_ZERO_STAGE = re.compile(r"(?:zero|stage|zero[-_]stage)[-_]?[0-3]", re.IGNORECASE)
"""Short names of a ZeRO stage, such as `zero3`."""


class _Field(NamedTuple):
    """A field of the schema, whether its section requires it, and the section that it holds."""

    field: Schema
    is_required: bool
    section: Schema | None


def render_key(word: str, width: int = 120, schema: Schema | None = None) -> str | None:
    """The page of a key: by its whole name, by DeepSpeed's name, or by the last part, where several sections may have
    it. None for an unknown one.
    """
    keys = find_keys(word)
    described = schema or run_spec_schema()
    return "\n\n\n".join("\n".join(_render_page(key, described, width)) for key in keys) if keys else None


def render_foreign_name(word: str, width: int = 120) -> str | None:
    """The page of the key that another program's name, or a short name such as `zero3`, stands for; or what to do in
    place of that setting. None for a name of no program.
    """
    if _ZERO_STAGE.fullmatch(word):
        return render_key("zero.stage", width)
    foreign = find_foreign_name(word)
    if foreign is None:
        return None
    if foreign.key is None:
        return wrap_text(f"`{word}` is a name of another program, and no key of a run spec: {foreign.advice}.", width)
    head = wrap_text(f"`{word}` is another program's name for `{foreign.key}`.", width)
    return f"{head}\n\n{render_key(foreign.key, width)}"


def find_keys(word: str) -> list[str]:
    """The keys that a word means."""
    known = list(list_spec_keys())
    name = word.removeprefix("deepspeed.")
    if word in known:
        return [word]
    field = spec_field_of(split_key(name))
    if field is not None:
        return [".".join(map(str, field))]
    return [key for key in known if key.endswith(f".{word}")]


def _render_page(key: str, schema: Schema, width: int) -> Iterator[str]:
    found = _find_field(schema, key)
    yield from (key, "", wrap_text(found.field.get("description", ""), width))
    if found.section is not None:
        yield from ("", *_render_fields(found.section, width), "")
    else:
        yield from ("", f"Type: {format_type(found.field)}")
        default = format_default(found.field)
        yield "Required." if found.is_required else f"Default: {default}" if default else "Default: none"
        yield f"For one command: --set {key}=VALUE"
    json_key = json_key_of(split_key(key))
    if json_key is not None:
        block, _, name = json_key.rpartition(".")
        own = (block_keys(block) or {}).get(name)
        is_scalar = own is not None and isinstance(own.default, bool | int | float | str)
        yield f"In DeepSpeed's JSON: {json_key}{f', by default {own.default!r}' if own and is_scalar else ''}"
    page = DOCS.get(key.partition(".")[0])
    yield f"Documentation: {f'docs/{page}.md, ' if page else ''}docs/spec-keys.md"
    findings = rows_about(key)
    if findings:
        more = len(findings) - _MAX_FINDINGS
        yield from ("", "Findings about it:")
        for row in findings[:_MAX_FINDINGS]:
            yield fill(f"{row.id}  {row.title}", width, initial_indent="  ", subsequent_indent=" " * 9)
        yield from [f"  and {more} more"] if more > 0 else []


def _find_field(schema: Schema, key: str) -> _Field:
    node, found = schema, _Field(schema, False, schema)
    for name in split_key(key):
        field = node["properties"][str(name)]
        definition = section_of(field)
        section = schema["$defs"][definition] if definition else None
        found = _Field(field, name in node.get("required", []), section)
        node = section or {}
    return found


def _render_fields(section: dict[str, Any], width: int) -> Iterator[str]:
    names = max(map(len, section["properties"]))
    for name, field in section["properties"].items():
        first_sentence = " ".join(field.get("description", "").split()).partition(". ")[0].rstrip(".")
        text = f"{format_type(field)}. {first_sentence}"
        head = f"  {name.ljust(names)}  "
        yield fill(text, max(width, 40), initial_indent=head, subsequent_indent=" " * len(head))


@cache
def _terms() -> Mapping[str, Mapping[str, str]]:
    return read_entries(Path(__file__).with_name("assets") / "terms.txt")


def render_term(word: str, width: int = 120) -> str | None:
    """The paragraph of a term and the command that shows it; None for another word."""
    key = word.strip().lower().replace(" ", "-")
    for name, term in _terms().items():
        if key in (name, name.replace("_", "-"), *filter(None, term.get("spellings", "").split(", "))):
            return f"{word}\n\n{fill(term['text'], width)}\n\nShown by: {term['command']}"
    return None
