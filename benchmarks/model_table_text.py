# SPDX-License-Identifier: Apache-2.0
"""The answers of all model types as the lines of `harness/facts/model_table.txt`, question by question."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from harness.facts import model_table
from harness.facts.tensor_parallel_plans import KNOWN_STYLES
from harness.hostinfo.model_answers import QUESTIONS

IN_TABLE = (*(question for question in QUESTIONS if question != "size"), "planned")
"""Nothing reads the sizes of default configurations."""
HEAD = (
    "# The answers of every causal and image-text `model_type` of one release of transformers. Read by `model_table`.",
    "#",
    "# By question: an answer (yes, no, or ? where it is not known) with its reason, the names that it is about",
    "# (`+`), and the types that gave it, below or behind `<-`. What follows a type fills the `{}` of the reason,",
    "# then the `~` of the names; `@` stands for `model.layers.*.`, `&` for a blank. A type that stands at no",
    "# answer has the first one, and one that is not causal was asked nothing else. `dropout`: types that drop",
    "# attention weights. `plan`: styles of a tensor plan with their modules, of which `@` stands for `layers.*.`,",
    "# where DeepSpeed does not say which styles it refuses; `-`: no plan.",
    "",
)
_WORD = re.compile(r"`[\w.]+`|(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?(?!\w)|\b[A-Z]\w*(?:Model|Wrapper|Embedding|Layer)\b")
"""What differs between reasons that are otherwise the same: a number, a type, a class."""
_WIDTH = 160


def table_lines(
    head: dict[str, str], rows: dict[str, Any], dropping: list[str], plans: dict[str, dict[str, str]]
) -> Iterator[str]:
    """The lines of the file. `rows`: [holds, reason, names] by question and type; `plans`: of the causal types."""
    yield from HEAD
    yield from (f"{key}: {value}" for key, value in head.items())
    asked = {name: row for name, row in rows.items() if row["causal"][0]}
    for question in IN_TABLE:
        yield from ("", f"[{question}]")
        yield from _answer_lines(question, rows if question == "causal" else asked)
    yield from ("", "[dropout]", *_fill("", dropping), "", "[plan]")
    by_plan: dict[str, list[str]] = {}
    for name, plan in plans.items():
        unknown = sorted({*plan.values()} - KNOWN_STYLES)
        if unknown != model_table.refused_styles(rows[name]["tensor"][1]) or (plan and not unknown):
            styles = {style: [n for n in plan if plan[n] == style] for style in dict.fromkeys(plan.values())}
            words = unknown or [" ".join((style, *names)) for style, names in styles.items()] or ["-"]
            by_plan.setdefault(", ".join(words).replace("layers.*.", "@"), []).append(name)
    for plan, names in by_plan.items():
        yield from [*_one_answer("", {plan: names})][1:]


def _answer_lines(question: str, rows: dict[str, Any]) -> list[str]:
    """The usual answer, then the others with the types that gave them. Of reasons that differ in words alone those that
    are one in fewer lines are one.
    """
    found: dict[str, dict[str, list[str]]] = {}
    merged: dict[str, list[tuple[list[str], str, dict[str, list[str]]]]] = {}
    for name, (holds, reason, names) in ((name, row[question]) for name, row in rows.items()):
        stem = os.path.commonprefix(names[:2]) if len(names) > 2 and "." not in names[0] else ""  # noqa: RUF071
        text = " ".join(each.replace(" ", "&") for each in names).replace(model_table.LAYER, "@")
        text, entry = (text.replace(stem, "~"), f"{name} {stem}") if len(stem) > 1 else (text, name)
        answer = f"{ {True: 'yes', False: 'no', None: '?'}[holds] } {reason}"
        found.setdefault(answer, {}).setdefault(text, []).append(entry)
    for answer, types in found.items():
        merged.setdefault(_WORD.sub("{}", answer), []).append((_WORD.findall(answer), answer, types))
    for template, alike in merged.items():
        columns = [*zip(*(words for words, _, _ in alike), strict=True)]
        if len(alike) == 1 or any("~" in text for _, _, types in alike for text in types):
            continue
        both: dict[str, list[str]] = {}
        for words, _, types in alike:
            told = " ".join(word for word, column in zip(words, columns, strict=True) if len({*column}) > 1)
            for text, names in types.items():
                both[text] = sorted([*both.get(text, ()), *(f"{name} {told}" for name in names)])
        start, *parts = template.split("{}")
        one = start + "".join(
            f"{column[0] if len({*column}) == 1 else '{}'}{part}" for column, part in zip(columns, parts, strict=True)
        )
        if len([*_one_answer(one, both)]) < sum(len([*_one_answer(each, types)]) for _, each, types in alike):
            found = {each: types for each, types in found.items() if each not in {other for _, other, _ in alike}}
            found[one] = both
    first = max(found, key=lambda answer: sum(map(len, found[answer].values())))
    if question != "causal":  # whose first answer says which types there are
        found[first].pop("", None)
    return [line for answer in (first, *sorted(found.keys() - {first})) for line in _one_answer(answer, found[answer])]


def _one_answer(answer: str, types: dict[str, list[str]]) -> Iterator[str]:
    """An answer and its types, by the names that it is about."""
    lines = [*_fill(answer, types.get("", []))] if types.keys() <= {""} else [answer]
    for text, names in sorted(types.items() if lines == [answer] else ()):
        *more, last = [*_wrap(text.split(" "), "  + ")] if text else [""]
        lines += [*more, *_fill(last, names)]
    yield from lines


def _fill(start: str, entries: list[str]) -> Iterator[str]:
    """The types behind an answer or its last names, in a line where they fit into one."""
    line = f"{start} <- {', '.join(entries)}"
    if not entries or (start and len(line) <= _WIDTH):
        return iter([line if entries else start])
    words = [entry if entry is entries[-1] else f"{entry}," for entry in entries]
    return iter([*filter(None, [start]), *_wrap(words, "    ")])


def _wrap(words: list[str], indent: str) -> Iterator[str]:
    """Lines of a width, where no word is longer."""
    line = ""
    for word in words:
        if line and len(indent) + len(line) + 1 + len(word) > _WIDTH:
            yield indent + line
            line = ""
        line = f"{line} {word}" if line else word
    yield indent + line
