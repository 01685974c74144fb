# SPDX-License-Identifier: Apache-2.0
"""The answers of every model type of one release of `transformers`, measured on small copies and shipped as data.

`benchmarks/model_table.py` writes `model_table.txt`; `python -m harness.views.models_page > docs/models.md` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.facts.model_families import FAMILIES, SAME_FAMILY
from harness.hostinfo.machine import package_version
from harness.hostinfo.model_answers import Answer, ModelAnswers

_FILE = Path(__file__).with_suffix(".txt")
_SIGNS = {"yes": True, "no": False, "?": None}
LAYER = "model.layers.*."
REFUSED = (
    "ValueError: HuggingFace tp_plan contains unsupported partition style(s): {}. Applying only the supported entries"
    " could shard one half of a column/row pair, so"
)
"""DeepSpeed's words about a plan with styles that it does not know, of which an answer has the first 172 characters."""
Cell = tuple[str, str, list[str]]
"""An answer, the names that it is about, and the words that fill both."""


class Table(NamedTuple):
    """The file. `cells`: by question and type; the answer of `` is that of the types without one of their own, that of
    `[apart]` theirs where their answer to that question is no.
    """

    head: Mapping[str, str]
    cells: Mapping[str, Mapping[str, Cell]]

    @property
    def types(self) -> list[str]:
        """Every type that was asked."""
        return sorted({*self.cells["causal"]} - {""})

    @property
    def releases(self) -> dict[str, str]:
        """The releases of the packages that answered."""
        return dict(zip(*[iter(self.head["releases"].replace(",", "").split())] * 2, strict=True))


@cache
def read_table() -> Table:
    """The file, whose first lines describe it."""
    head: dict[str, str] = {}
    cells: dict[str, dict[str, Cell]] = {}
    question = answer = names = ""
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        text, _, types = line.partition(" <- ")
        if line.startswith("["):
            question, answer = line[1:-1], ""
            cells[question] = {}
        elif line.startswith("    "):
            types = line
        elif line.startswith("  + "):
            names += text[3:]
        elif question and line:
            answer, names = text, ""
            cells[question].setdefault("", (answer, "", []))
        elif line and not line.startswith("#"):
            head[line.partition(":")[0]] = line.partition(": ")[2]
        for kind, *words in (entry.split() for entry in types.strip(" ,").split(", ") if entry):
            cells[question][kind] = (answer, names, words)
        if types and not types.endswith(","):
            names = ""
    for kind in {kind for name, each in cells.items() if name != "dropout" for kind in each if kind[:1] != "["}:
        cells["causal"].setdefault(kind, cells["causal"][""])
    return Table(head, cells)


def find_row(model_type: Any) -> ModelAnswers | None:
    """The answers of a model type with its default configuration; None for one that the release did not have."""
    if not isinstance(model_type, str) or model_type not in read_table().cells["causal"] or not model_type:
        return None
    return _read_row(model_type)


@cache
def _read_row(model_type: str) -> ModelAnswers:
    cells = read_table().cells
    found: dict[str, Answer] = {}
    for name, each in cells.items():
        if "" in each:
            denied = (each[f"[{other}]"] for other in found if found[other].holds is False and f"[{other}]" in each)
            found[name] = _read(each.get(model_type) or next(denied, each[""]), found)
    causal, plan = found["causal"], _plan_parts(model_type)
    styles = [part[0] for part in plan if part != ["-"]]
    if model_type not in cells["tensor"] and all(len(part) == 1 for part in plan) and styles:
        found["tensor"] = Answer(False, REFUSED.format(styles)[:172])
    if not causal.holds:  # nothing else was asked
        reason = causal.reason.partition("; ")[0]
        other = "it is no causal language model" if " change with " in reason else reason
        found = dict.fromkeys(found, Answer(None, other)) | {"causal": causal, "apart": Answer(causal.holds, reason)}
    has_formula = SAME_FAMILY.get(model_type, model_type) in FAMILIES
    without = "no formula: `transformers` counts it where it is installed"
    found["planned"] = Answer(*(True, "the formula counts what is built") if has_formula else (None, without))
    return ModelAnswers.from_fields(found)


def _read(cell: Cell, found: Mapping[str, Answer]) -> Answer:
    """The answer with its words in their places. `found`: those to other questions, whose names it may have."""
    answer, text, words = cell
    sign, _, reason = answer.partition(" ")
    first, *parts = reason.split("{}")
    reason = first + "".join(f"{word}{part}" for word, part in zip(words, parts, strict=False))
    names = [*_expand(text.replace("@", LAYER).replace("~", "".join(words[len(parts) :])))]
    if names[:1] == ["[lora]"]:
        names = [*found["lora"].names]
    return Answer(_SIGNS[sign], reason, tuple(name.replace("&", " ") for name in names))


def _expand(text: str) -> Iterator[str]:
    """The words of a text, `q_proj` and `k_proj` of `{q,k}_proj`."""
    for word in text.split():
        start, _, rest = word.partition("{")
        middle, _, end = rest.partition("}")
        yield from (f"{start}{each}{end}" for each in middle.split(","))


def holds(model_type: Any, question: str) -> bool | None:
    """The table's answer; None where it is not known."""
    row = find_row(model_type)
    return None if row is None else row.answer_to(question).holds


def tensor_plan(model_type: str) -> Mapping[str, str]:
    """The tensor plan of `transformers` for a type, style by name of module, without the embeddings; empty without. Of
    a plan that DeepSpeed refuses, the styles that it does not know, by themselves.
    """
    parts = _plan_parts(model_type)
    return {} if ["-"] in parts else {name: style for style, *modules in parts for name in modules or [style]}


def _plan_parts(model_type: str) -> list[list[str]]:
    _, names, _ = read_table().cells["plan"].get(model_type, ("", "", []))
    return [[*_expand(part)] for part in names.replace("@", "layers.*.").split(", ") if part]


def release_note() -> str:
    """Whose answers these are, for a machine with another release of `transformers`; empty on any other machine."""
    if is_of_installed_release():
        return ""
    installed = package_version("transformers")
    return f"measured with transformers {read_table().releases['transformers']}, and {installed} is installed here"


def is_of_installed_release() -> bool:
    """Is the installed `transformers` the release of the table, but for its last number, or not installed at all?"""
    installed = package_version("transformers")
    measured = read_table().releases["transformers"]
    return installed is None or installed.split(".")[:2] == measured.split(".")[:2]
