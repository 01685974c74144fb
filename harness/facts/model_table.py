# SPDX-License-Identifier: Apache-2.0
"""The answers of every model type of one release of `transformers`, measured on small copies and shipped as data.

`benchmarks/model_table.py` writes `model_table.txt`; `python -m harness.views.models_page > docs/models.md` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.hostinfo.machine import package_version
from harness.hostinfo.model_answers import Answer, ModelAnswers

_FILE = Path(__file__).with_suffix(".txt")
_SIGNS = {"yes": True, "no": False, "?": None}
LAYER = "model.layers.*."


class Table(NamedTuple):
    """The file. `cells`: by question and type an answer, the names that it is about and the words that fill both; the
    answer of `` is that of the types without one of their own.
    """

    head: Mapping[str, str]
    cells: Mapping[str, Mapping[str, tuple[str, str, list[str]]]]

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
    cells: dict[str, dict[str, tuple[str, str, list[str]]]] = {}
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
    return Table(head, cells)


def find_row(model_type: Any) -> ModelAnswers | None:
    """The answers of a model type with its default configuration; None for one that the release did not have."""
    cells = read_table().cells
    if not isinstance(model_type, str) or model_type not in cells["causal"] or not model_type:
        return None
    found = {name: _read(*each.get(model_type, each[""])) for name, each in cells.items() if "" in each}
    causal = found["causal"]
    if not causal.holds:  # nothing else was asked
        reason = causal.reason.partition("; ")[0]
        other = "it is no causal language model" if " change with " in reason else reason
        rest = dict.fromkeys(found.keys() - {"causal", "apart", "planned"}, Answer(None, other))
        found |= {**rest, "apart": Answer(causal.holds, reason)}
    return ModelAnswers.from_fields(found)


def _read(answer: str, names: str, words: list[str]) -> Answer:
    """The answer with its words in their places."""
    sign, _, reason = answer.partition(" ")
    first, *parts = reason.split("{}")
    text = first + "".join(f"{word}{part}" for word, part in zip(words, parts, strict=False))
    names = names.replace("@", LAYER).replace("~", "".join(words[len(parts) :]))
    return Answer(_SIGNS[sign], text, tuple(name.replace("&", " ") for name in names.split()))


def holds(model_type: Any, question: str) -> bool | None:
    """The table's answer; None where it is not known."""
    row = find_row(model_type)
    return None if row is None else row.answer_to(question).holds


def tensor_plan(model_type: str) -> Mapping[str, str]:
    """The tensor plan of `transformers` for a type, style by name of module, without the embeddings; empty without. Of
    a plan that DeepSpeed refuses, the styles that it does not know.
    """
    row, cell = find_row(model_type), read_table().cells["plan"].get(model_type)
    if cell is None:
        return {style: style for style in refused_styles(row.answer_to("tensor").reason)} if row is not None else {}
    parts = [part.split() for part in cell[1].replace("@", "layers.*.").replace("-", "").split(",")]
    return {name: part[0] for part in parts for name in part[1:] or part}


def refused_styles(reason: str) -> list[str]:
    """The styles of a plan that DeepSpeed names as it refuses it."""
    found = re.search(r"unsupported partition style\(s\): \[(.*?)\]", reason)
    return re.findall(r"\w+", found[1]) if found else []


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
