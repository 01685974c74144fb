# SPDX-License-Identifier: Apache-2.0
"""The output of `harness data`: text for a person, JSON for a program. Reads no data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.units import format_count, format_seconds, pluralize
from harness.views.style import Style, escape_unprintable

_BAR_WIDTH = 32
_MAX_EXAMPLE_CHARS = 1200
"""Characters of an example."""


def data_as_json(body: Mapping[str, Any]) -> str:
    """The whole preview, with tokens and records as numbers."""
    return json.dumps({"format_version": 1, **body}, indent=2)


def render_data(name: str, body: Mapping[str, Any], style: Style) -> str:
    """One block per subject; the last line names the folder of the tokens. Rows of the user's own have one block."""
    if "rows" in body:
        return _render_own_rows(name, body, style)
    blocks = [
        _render_head(name, body, style),
        _render_sources(body),
        _render_skipped_records(body, style),
        _render_length_histogram(body, style),
    ]
    blocks += [_render_example(i, example, style) for i, example in enumerate(body["examples"], start=1)]
    blocks.append(_render_foot(body, style))
    return "\n\n".join(block for block in blocks if block)


def _render_own_rows(name: str, body: Mapping[str, Any], style: Style) -> str:
    lines = [style.paint(name, "", bold=True)]
    lines.append(
        f"  training {pluralize(body['rows']['train'], 'row')}, held out {pluralize(body['rows']['eval'], 'row')}"
    )
    for number, row in enumerate(body["examples"], start=1):
        lines.append(f"  row {number} as a batch of one: {row['units']:g} units in the mean of the loss")
        for tensor in row["tensors"]:
            what = f"{escape_unprintable(tensor['name'])}: {tensor['dtype']} {tuple(tensor['shape'])}"
            lines.append(f"    {what}, first value {tensor['first']}")
    return "\n".join(lines)


def _render_head(name: str, body: Mapping[str, Any], style: Style) -> str:
    tokens, documents = body["tokens"], body["documents"]
    share = tokens["trained_on"] / max(1, tokens["train"])
    how = "packed" if body["packing"] else "at most" if any(part["rows"] for part in body["train"]) else "blocks of"
    rows = [
        ("training", f"{pluralize(documents['train'], 'record')}, {pluralize(tokens['train'], 'token')}"),
        ("predicted", f"{tokens['trained_on']:,} of these tokens, {share:.1%}: the loss counts no others"),
        ("held out", _describe_held_out(body)),
        ("sequences", f"{body['sequences']['train']:,}, {how} {body['max_length']:,} tokens"),
        ("positions used", f"{body['filled']:.1%}, the rest is padding"),
        ("an epoch", _describe_epoch(body)),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join([style.paint(name, "", bold=True), *(f"  {label.ljust(width)}  {value}" for label, value in rows)])


def _describe_held_out(body: Mapping[str, Any]) -> str:
    documents, tokens = body["documents"]["eval"], body["tokens"]["eval"]
    if not tokens and body.get("eval_fraction"):
        return "nothing: a single record is not divided; name other data in `data.eval`"
    return f"{pluralize(documents, 'record')}, {pluralize(tokens, 'token')}"


def _describe_epoch(body: Mapping[str, Any]) -> str:
    steps, batch = body["steps_an_epoch"], body["sequences_a_step"]
    rest = body["sequences"]["an_epoch"] - steps * batch
    left_over = f"; left over: {rest:,}, different ones in each epoch" if rest else ""
    return f"{pluralize(steps, 'step')} of {pluralize(batch, 'sequence')}{left_over}"


def _render_sources(body: Mapping[str, Any]) -> str:
    if len(body["train"]) < 2:
        return ""
    lines = ["Sources"]
    for part in body["train"]:
        weight = "" if part["weight"] is None else f", weight {part['weight']:g}"
        counts = f"{pluralize(part['documents'], 'record')}, {pluralize(part['tokens'], 'token')}"
        lines.append(f"  {part['source']}: {counts}{weight}")
    return "\n".join(lines)


def _render_skipped_records(body: Mapping[str, Any], style: Style) -> str:
    lines = []
    if body["truncated"]:
        lines.append(f"  {body['truncated']:,} cut off at {body['max_length']:,} tokens")
    for kind, count in sorted(body["skipped"].items(), key=lambda item: -item[1]):
        lines.append(f"  {count:,} left out: {style.paint(kind, 'yellow')}")
    for entry in body["examples_skipped"]:
        place = ", ".join(f"{k} {v}" for k, v in entry.items() if k not in ("source", "kind", "why"))
        lines.append(f"    {entry['source']}{', ' if place else ''}{place}: {entry['why']}")
    if body["skipped_list"]:
        lines.append(f"  all of them are in {body['skipped_list']}")
    return "\n".join(["Skipped or cut records", *lines]) if lines else ""


def _render_length_histogram(body: Mapping[str, Any], style: Style) -> str:
    """A bar for each power of two."""
    counts: Sequence[int] = body["lengths"]
    most = max(counts, default=0)
    if not most:
        return ""
    first = next(i for i, count in enumerate(counts) if count)
    lines = ["Length of records before they are cut, in tokens"]
    for i in range(first, len(counts)):
        low, high = (2 ** (i - 1) + 1 if i else 1), 2**i
        bar = "#" * -(-counts[i] * _BAR_WIDTH // most)
        lines.append(f"  {low:>9,} to {high:<9,} {counts[i]:>11,}  {style.paint(bar, 'cyan')}")
    return "\n".join(lines)


def _render_example(number: int, example: Mapping[str, Any], style: Style) -> str:
    """The text with masked tokens between `[[` and `]]`, which a terminal dims as well."""
    counts = f"{example['trained_on']:,} of {example['tokens']:,} tokens are predicted"
    head = f"Example {number}: sequence {example['sequence']:,}, {counts}"
    pieces: list[str] = []
    left = _MAX_EXAMPLE_CHARS
    for part, trained in example["parts"]:
        text = escape_unprintable(part[:left], keep="\n")
        left -= len(part)
        pieces.append(text if trained else style.paint(f"[[{text}]]", "blue"))
        if left <= 0:
            pieces.append(" ...")
            break
    body = "".join(pieces).replace("\n", "\n  | ")
    return f"{style.paint(head, '', bold=True)}\n  | {body}"


def _render_foot(body: Mapping[str, Any], style: Style) -> str:
    how = "found in" if body["from_cache"] else f"prepared in {format_seconds(body['seconds'])} in"
    mark = style.paint("[[...]]", "blue") + " is read but not predicted. " if body["examples"] else ""
    return f"{mark}{format_count(body['tokens']['train'])} tokens, {how} {body['cache']}"
