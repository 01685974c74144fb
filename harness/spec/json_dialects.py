# SPDX-License-Identifier: Apache-2.0
"""Dialects of JSON: DeepSpeed reads hjson, the Hugging Face Trainer and accelerate strict JSON. And templates, which
are no JSON until somebody fills them in.

Knows no key's meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.findings import Finding, Fix, Place
from harness.spec.auto_values import CONSUMER_NAMES
from harness.spec.parse.json_parser import JsonDocument, NonStandardSyntax
from harness.spec.parse.source import KeyPath, join_key
from harness.spec.run_spec import Consumer

_LOOKS_LIKE_LITERAL = re.compile(
    r"(?i)(?:true|false|none|null|yes|no|on|off|nan|[-+]?inf(?:inity)?|[-+]?\.?\d[\w.+-]*)\s*,?\s*(?:(?:#|//|/\*).*)?$"
)
_ENDS_LIKE_VALUE = re.compile(r",$|\s(?:#|//|/\*)")
_LITERALS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_PLACEHOLDER = r"\$\{?\w+\}?|\$\(\w+\)|\{\{[^{}]*\}\}|<[A-Za-z_]\w*>|%\(\w+\)s|@\w+@|__[A-Z]\w*__|\{[A-Za-z_]\w*\}"
_TEMPLATE_SYNTAX = re.compile(rf"(?:{_PLACEHOLDER}|\{{%.*?%\}})")
_UPPERCASE_WORD = re.compile(r"(?!NAN\b|NULL\b|TRUE\b|FALSE\b|NONE\b|INF\b)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b")


def find_placeholder(text: str, line: int, column: int) -> str | None:
    """The template's placeholder at or near the place of a JSON or YAML syntax error; None if there is none."""
    lines = text.split("\n")
    line_text = lines[line - 1] if line <= len(lines) else ""
    match = _TEMPLATE_SYNTAX.search(line_text) or _UPPERCASE_WORD.match(line_text[column - 1 :])
    match = match or re.search(r"\{%.*?%\}|\{\{[^{}\"']*\}\}", text)
    return match[0] if match else None


def find_template(document: JsonDocument) -> Finding | None:
    """One finding for a file whose values are still placeholders, such as `BATCH_SIZE` or `"${BATCH}"`."""
    unquoted = {i.path: i.text.rstrip(", ") for i in document.nonstandard_syntax if i.kind == "unquoted text"}
    placeholders = {
        path: word
        for path, word in unquoted.items()
        if _UPPERCASE_WORD.fullmatch(word) or re.fullmatch(_PLACEHOLDER, word)
    }
    quoted = {path: text.strip() for path, text in _walk_texts(document.source.data, ()) if path not in unquoted}
    placeholders |= {path: text for path, text in quoted.items() if re.fullmatch(_PLACEHOLDER, text)}
    if not placeholders:
        return None
    path, word = min(placeholders.items(), key=lambda item: document.source.place(item[0]))
    count_note = f", and {len(placeholders) - 1} more like it" if len(placeholders) > 1 else ""
    return template_finding(word, document.source.place(path), join_key(path), count_note)


def template_finding(word: str, place: Place, key: str = "", count_note: str = "") -> Finding:
    """The finding about a template: fill it in first."""
    return Finding(
        "SP017",
        "error",
        f"this is a template: `{word[:60]}` stands where a value belongs{count_note}",
        key,
        place,
        notes=("neither DeepSpeed nor the Trainer fills in placeholders",),
        fix=Fix("fill in the template, then check the result"),
    )


def _walk_texts(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _walk_texts(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk_texts(item, (*path, number))


def check_dialect(document: JsonDocument, consumer: Consumer, *, bom: bool) -> Iterator[Finding]:
    """Findings about the dialect of the file: one for all of hjson's syntax, one for each text that was meant as a
    number or a word.
    """
    items = list(document.nonstandard_syntax)
    if bom:
        items.insert(0, NonStandardSyntax("a byte order mark", Place(document.source.file, 1, 1)))
    misread = [item for item in items if is_misread_text(item)]
    for item in misread:
        yield _unquoted_text_finding(item)
    others = [item for item in items if item not in misread]
    if others:
        yield _not_strict_finding(others, consumer)


def is_misread_text(item: NonStandardSyntax) -> bool:
    """Does hjson read as a text what was meant as a number, a switch or nothing?"""
    if item.kind != "unquoted text":
        return False
    return bool(_LOOKS_LIKE_LITERAL.match(item.text) or _ENDS_LIKE_VALUE.search(item.text))


def _unquoted_text_finding(item: NonStandardSyntax) -> Finding:
    key = join_key(item.path)
    word = re.split(r"\s*(?:,|#|//|/\*)", item.text)[0].strip()
    literal = _LITERALS.get(word.lower())
    if literal is None and re.fullmatch(r"\+?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", word):
        literal = f"{float(word):g}"
    return Finding(
        "SP019",
        "error",
        f'`{key}` is the text "{item.text[:60]}" to DeepSpeed, since `{word[:40]}` is no JSON value',
        key,
        item.place,
        notes=("strict JSON readers refuse the file here; in blocks without type checks a text counts as true",),
        fix=Fix(f"write `{literal}`" if literal else "write a JSON number, `true`, `false`, or a text in quotes"),
    )


def _not_strict_finding(items: Sequence[NonStandardSyntax], consumer: Consumer) -> Finding:
    kinds = list(dict.fromkeys(item.kind for item in items))
    is_lenient = consumer == "deepspeed"
    kinds_text = ", ".join(kinds[:-1]) + f" and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
    reader = CONSUMER_NAMES["hf"] if is_lenient else CONSUMER_NAMES[consumer]
    return Finding(
        "SP018",
        "warning" if is_lenient else "error",
        f"not strict JSON ({kinds_text}): "
        + ("DeepSpeed reads it, the Trainer and accelerate do not" if is_lenient else f"{reader} cannot read it"),
        place=items[0].place,
        notes=(
            "DeepSpeed reads its configuration with hjson, the Trainer and accelerate with Python's json",
            *((f"{len(items)} places in all",) if len(items) > 1 else ()),
        ),
        fix=Fix("write strict JSON"),
    )
