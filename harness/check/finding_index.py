# SPDX-License-Identifier: Apache-2.0
"""Every id that a finding can have: gates, findings that loading makes, causes that logs show. One row each."""

from __future__ import annotations

from functools import cache
from operator import eq
from typing import NamedTuple

from harness.finding_pages import Page, load_pages
from harness.gates.registry import Gate, all_gates
from harness.spec.suggestions import nearest_name

FAMILIES = {
    "BT": "the batch",
    "ZR": "ZeRO",
    "OF": "offload",
    "TP": "tensor parallelism",
    "PP": "pipelines",
    "SQ": "sequence parallelism",
    "EX": "experts",
    "PR": "precision",
    "OP": "optimizers and schedulers",
    "MD": "model and data",
    "CK": "checkpoints",
    "ST": "object stores",
    "CC": "compilation",
    "UT": "monitors, profilers, activation checkpointing, data efficiency",
    "SE": "security",
    "HF": 'the Hugging Face Trainer and "auto"',
    "HO": "hosts",
    "SP": "files and their keys",
    "AD": "converted files of other trainers",
    "MM": "memory and time",
    "EN": "the environment",
    "AT": "engine checks",
    "GT": "gates themselves",
    "LG": "causes in logs",
    "UP": "changes under another release",
    "RN": "rendered files",
}


class PageRow(NamedTuple):
    """One line of the table; `gate` is None for findings that are made elsewhere."""

    id: str
    name: str
    title: str
    versions: str
    gate: Gate | None = None


@cache
def list_rows() -> list[PageRow]:
    """Everything that has a page, by id."""
    rows = [PageRow(g.id, g.name, g.page.title, g.versions, g) for g in all_gates()]
    rows += [PageRow(id_, p.name, _first_sentence(p.text), "all") for id_, p in load_all_pages().items()]
    return sorted(rows, key=lambda row: row.id)


@cache
def load_all_pages() -> dict[str, Page]:
    """The pages of all that is no gate: findings, and causes that are found in logs."""
    from harness.diagnosis.catalogue import all_causes

    return load_pages() | {cause.id: Page(cause.name, cause.text) for cause in all_causes()}


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].partition(": ")[0].rstrip(".")


def rows_of_family(word: str) -> list[PageRow]:
    """The rows of a family, such as `ZR`; empty for an unknown one."""
    return [row for row in list_rows() if row.id[:2] == word.upper()]


def find_nearest_id(word: str) -> str | None:
    """The id or the name that was probably meant."""
    by_name = {row.name: row.id for row in list_rows()}
    alike = [
        id_ for id_ in sorted(by_name.values()) if sum(map(eq, id_, word.upper())) == len(id_) - 1 == len(word) - 1
    ]
    if alike:
        return alike[0]  # one character is another, such as the letter O for 0
    name = nearest_name(word, [*by_name, *by_name.values(), *FAMILIES])
    return by_name.get(name, name) if name else None
