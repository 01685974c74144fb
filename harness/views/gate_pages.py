"""The pages of gates and of the findings that loading makes: one at a time, and all as a table."""

from __future__ import annotations

from harness.gates.registry import Gate, gates
from harness.spec.pages import pages
from harness.spec.suggest import nearest

_UPSTREAM = {
    "raises": "refused by DeepSpeed",
    "asserts": "asserted by DeepSpeed, gone under `python -O`",
    "silent": "accepted by DeepSpeed in silence",
    "hangs": "hangs",
    "wrong": "trains something else, or fails late",
    "crashes": "fails inside DeepSpeed without a message for the user",
}


def page(id_: str) -> str | None:
    """One page as text; None for an unknown id. The id's case does not matter."""
    id_ = id_.upper()
    gate = next((g for g in gates() if g.id == id_), None)
    if gate is not None:
        return _gate_page(gate)
    entry = pages().get(id_)
    return f"{id_} ({entry.name})\n\n{entry.text}" if entry else None


def _gate_page(gate: Gate) -> str:
    lines = [
        f"{gate.id} ({gate.name})",
        "",
        gate.page.strip(),
        "",
        f"Without this gate: {_UPSTREAM[gate.upstream]}. DeepSpeed versions: {gate.versions}.",
    ]
    lines += [f'Seen in: deepspeed/{cite.file}, "{cite.quote}"' for cite in gate.cites]
    lines += [f'To put up with it, write in the spec: `ignore: {{{gate.id}: "why"}}`.']
    return "\n".join(lines)


def rows() -> list[tuple[str, str, str, str]]:
    """(id, name, what it is about, DeepSpeed versions) of everything that has a page, by id."""
    found = [(g.id, g.name, g.title, g.versions) for g in gates()]
    found += [(id_, p.name, _first_sentence(p.text), "all") for id_, p in pages().items()]
    return sorted(found)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].partition(": ")[0].rstrip(".")


def table_text() -> str:
    """The list for a terminal."""
    items = rows()
    width = max(len(name) for _, name, _, _ in items)
    return "\n".join(f"{id_}  {name.ljust(width)}  {title}" for id_, name, title, _ in items)


def table_markdown() -> str:
    """The list for a README."""
    lines = ["| Id | Name | What | DeepSpeed |", "| --- | --- | --- | --- |"]
    lines += [f"| {id_} | `{name}` | {title} | {versions} |" for id_, name, title, versions in rows()]
    return "\n".join(lines)


def nearest_id(id_: str) -> str | None:
    """The id or the name that was probably meant."""
    by_name = {name: key for key, name, _, _ in rows()}
    found = nearest(id_, [*by_name, *by_name.values()])
    return by_name.get(found, found) if found else None
