# SPDX-License-Identifier: Apache-2.0
"""The pages of gates and of the findings that loading makes: one at a time, a family, and all as a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import fill

from harness.check.finding_index import FAMILIES, PageRow, find_nearest_id, list_rows, load_all_pages, rows_of_family
from harness.findings import Finding, Fix
from harness.gates.page import Example
from harness.gates.registry import Cite, Gate
from harness.spec.deepspeed_mapping import json_key_of
from harness.spec.parse.source import split_key
from harness.spec.unknown_keys import describe_name

UPSTREAM = {
    "raises": "refuses it",
    "asserts": "asserts, but not under `python -O`",
    "silent": "silently accepts it",
    "hangs": "hangs",
    "wrong": "trains something else or fails late",
    "crashes": "fails with an internal error that does not name the setting",
}


def render_page(id_: str, width: int = 120) -> str | None:
    """One page as text, by id or name; None for an unknown one. Case does not matter."""
    row = next((row for row in list_rows() if id_.upper() == row.id or id_.lower() == row.name), None)
    if row is None:
        return None
    if row.gate is not None:
        return _render_gate_page(row.gate, width)
    return f"{row.id} ({row.name})\n\n{wrap_text(load_all_pages()[row.id].text, width)}"


def render_family(word: str, width: int = 120) -> str | None:
    """The table of a family, such as `ZR`; None for an unknown one."""
    family, rows = word.upper(), rows_of_family(word)
    return f"{family}: {FAMILIES.get(family, '')}\n\n{render_table(rows, width)}" if rows else None


def rows_about(key: str) -> list[PageRow]:
    """The findings whose page speaks of a key of the run spec, by its own name or by that in DeepSpeed's JSON."""
    names = [key, *filter(None, [json_key_of(split_key(key))])]
    mention = re.compile(rf"`(?:deepspeed\.)?(?:{'|'.join(map(re.escape, names))})(?:`|:|\.)")
    pages = load_all_pages()
    texts = ((row, row.gate.page.checks if row.gate is not None else pages[row.id].text) for row in list_rows())
    return [row for row, text in texts if mention.search(text)]


def unknown_id_finding(word: str) -> Finding:
    """SP011: a word that is no id, no family and no key, with what was probably meant."""
    nearest, key = find_nearest_id(word), describe_name(word)
    if nearest and (key is None or re.fullmatch(r"[^._]*[\d-][^._]*", word)):
        key = f"did you mean `{nearest}`?"
    fix = key or "`harness explain` lists the families of findings"
    return Finding("SP011", "error", f"`{word}` is not an id of a finding, a family of findings or a key", fix=Fix(fix))


def _render_gate_page(gate: Gate, width: int) -> str:
    lines = [
        f"{gate.id} ({gate.name})",
        "",
        wrap_text(page_text(gate), width),
        "",
        f"Without this gate, DeepSpeed {UPSTREAM[gate.upstream]}. DeepSpeed versions: {gate.versions}.",
    ]
    if gate.needs:
        lines.append(f"Needs: {', '.join(gate.needs)}.")
    if gate.policy:
        lines += ["", wrap_text(f"DeepSpeed itself would run this: {gate.policy}", width)]
    if gate.unseen:
        lines += ["", wrap_text(f"Read in the source, not run: {gate.unseen}", width)]
    lines += [f'Seen in: deepspeed/{cite.file}, "{cite.quote}"{_format_span(cite)}' for cite in gate.cites]
    lines += [f'To ignore it, write in the spec: `ignore: {{{gate.id}: "why"}}`.']
    return "\n".join(lines)


def _format_span(cite: Cite) -> str:
    """The releases that a quote speaks of, where they are not all of its gate's."""
    if cite.since and cite.until:
        return f" ({cite.since} to {cite.until})"
    return f" ({cite.since} and newer)" if cite.since else f" (up to {cite.until})" if cite.until else ""


def page_text(gate: Gate) -> str:
    """The page in Markdown: the gate's own sections, and the corrected example."""
    from harness.gates.use_instead import use_instead  # the loader and all gates: only where a page is shown

    page = gate.page
    sections = {
        "What it checks": page.checks,
        "Why it fails": page.why,
        "Example": _format_example(page.example),
        "Use instead": _format_example(use_instead(gate)),
    }
    return "\n\n".join([f"{page.title}.", *(f"## {heading}\n{text}" for heading, text in sections.items())])


def _format_example(example: Example) -> str:
    blocks = {example.kind: example.text, "hostfile": example.hostfile, "probe": example.probe}
    fenced = [f"```{kind}\n{text}```" for kind, text in blocks.items() if text]
    return "\n".join([f"{example.lead}\n", *fenced] if example.lead else fenced)


def wrap_text(text: str, width: int) -> str:
    """Paragraphs filled to the width; headings, code and lists stay as they are."""
    parts = re.split(r"(```.*?```)", text.strip(), flags=re.DOTALL)
    filled = [part if part.startswith("```") else _wrap_sections(part, width) for part in parts]
    return "".join(filled)


def _wrap_sections(text: str, width: int) -> str:
    blocks = re.split(r"(\n{2,}|(?<=\n)(?=## )|(?<=^)(?=## ))", text)
    return "".join(_wrap_block(block, width) for block in blocks if block is not None)


def _wrap_block(block: str, width: int) -> str:
    if not block.strip() or block.lstrip().startswith(("- ", "* ", "|", "    ")):
        return block
    head, _, rest = block.partition("\n") if block.startswith("## ") else ("", "", block)
    ending = "\n" if rest.endswith("\n") else ""
    body = (
        fill(" ".join(rest.split()), width, break_long_words=False, break_on_hyphens=False) + ending
        if rest.strip()
        else ""
    )
    start = "\n" if not head and block.startswith("\n") else ""
    return start + (f"{head}\n{body}" if head else body)


def render_table(items: Sequence[PageRow], width: int = 120) -> str:
    """The list for a terminal, with long titles wrapped."""
    names = max((len(row.name) for row in items), default=0)
    names = names if names + 40 <= width else 0  # on a narrow terminal the title has its own line
    lines = []
    for row in items:
        head = f"{row.id}  {row.name.ljust(names)}  "
        if not names:
            lines.append(head.rstrip())
            head = " " * 7
        lines.append(fill(row.title, max(width, 30), initial_indent=head, subsequent_indent=" " * len(head)))
    return "\n".join(lines)


def render_families(width: int = 120) -> str:
    """The families of findings with the number of each, gates first."""
    rows = list_rows()
    families = list(dict.fromkeys(row.id[:2] for row in rows))
    gates = [family for family in families if any(row.gate for row in rows if row.id[:2] == family)]
    lines = []
    for heading, names in (("Gates", gates), ("Other findings", [f for f in families if f not in gates])):
        lines += [heading, ""]
        for name in names:
            head = f"  {name}  {len(rows_of_family(name)):4}  "
            lines.append(
                fill(FAMILIES.get(name, name), max(width, 30), initial_indent=head, subsequent_indent=" " * 12)
            )
        lines.append("")
    hint = (
        "`harness explain ZR` lists a family, `harness explain OF004` explains a finding, `harness explain "
        "data.packing` a key of a run spec, and `harness explain --list` lists all findings."
    )
    return "\n".join([*lines, fill(hint, max(width, 30))])


def render_table_markdown() -> str:
    """`harness/gates/TABLE.md`: all gates by family, then the findings that no gate makes."""
    items = list_rows()
    rules = [row for row in items if row.gate is not None]
    lines = [
        "# Every gate",
        "",
        f"{len(rules)} gates. Written by `harness explain --table` and compared with the gates by a test.",
        "`harness explain ID` prints the page of one.",
    ]
    for short in dict.fromkeys(row.id[:2] for row in rules):
        lines += ["", f"## {short}: {FAMILIES.get(short, short)}", ""]
        lines += ["| Id | Name | What | Severity | Without it, DeepSpeed | Versions | Needs |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        lines += [_render_gate_row(row.gate) for row in rules if row.gate is not None and row.id[:2] == short]
    lines += ["", "## Findings that are no gates", "", "| Id | Name | What |", "| --- | --- | --- |"]
    lines += [f"| {row.id} | `{row.name}` | {_escape_cell(row.title)} |" for row in items if row.gate is None]
    return "\n".join(lines) + "\n"


def _render_gate_row(gate: Gate) -> str:
    upstream = UPSTREAM[gate.upstream] + (" (refused by policy)" if gate.policy else "")
    severities, needs = ", ".join(gate.severities), ", ".join(gate.needs)
    cells = [gate.id, f"`{gate.name}`", gate.page.title, severities, upstream, gate.versions, needs]
    return f"| {' | '.join(map(_escape_cell, cells))} |"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")
