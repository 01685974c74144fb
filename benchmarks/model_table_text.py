# SPDX-License-Identifier: Apache-2.0
"""The answers of all model types as the lines of `harness/facts/model_table.txt`, question by question."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.facts import model_table
from harness.facts.tensor_parallel_plans import KNOWN_STYLES
from harness.hostinfo.model_answers import QUESTIONS

IN_TABLE = tuple(question for question in QUESTIONS if question != "size")
"""Nothing reads the sizes of default configurations."""
HEAD = (
    "# The answers of every causal and image-text `model_type` of one release of transformers. Read by `model_table`.",
    "#",
    "# By question: an answer (yes, no, or ? where it is not known) with its reason, the names that it is about",
    "# (`+`), and the types that gave it, below or behind `<-`. What follows a type fills the `{}` of the reason,",
    "# then the `~` of the names; `@` stands for `model.layers.*.`, `&` for a blank, `{q,k}_proj` for both names.",
    "# A type that stands at no answer has the first one, and one that is not causal was asked nothing else. Among",
    "# types `[lora]` is those whose answer to that question is no, among names the names of that answer.",
    "# `dropout`: types that drop attention weights. `plan`: styles of a tensor plan with their modules, of which",
    "# `@` stands for `layers.*.`, or alone the styles for which DeepSpeed refuses it, behind `-` where it is not the",
    "# type's own.",
    "",
)
IMPLIED = {"kernels": "apart", "qlora": "lora"}
"""Questions whose usual answer is another one for the types whose answer to that question is no."""
_WORD = re.compile(
    r"'[\w.]+'|`[\w.]+`|(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?(?!\w)|\b[A-Z]\w*(?:Model|Wrapper|Embedding|Layer)\b"
)
"""What differs between reasons that are otherwise the same: a number, a type, a class."""
_WIDTH = 160


def table_lines(
    head: dict[str, str], rows: dict[str, Any], dropping: list[str], plans: dict[str, dict[str, str]]
) -> Iterator[str]:
    """The lines of the file. `rows`: [holds, reason, names] by question and type; `plans`: of the causal types."""
    yield from HEAD
    yield from (f"{key}: {value}" for key, value in head.items())
    asked = {name: row for name, row in rows.items() if row["causal"][0]}
    refused = {name: sorted({*plan.values()} - KNOWN_STYLES) for name, plan in plans.items()}
    for name, row in asked.items():  # of a composite that has no plan, the text model's may be refused
        refused[name] = refused[name] or (
            re.findall(r"'(\w+)'", row["tensor"][1]) if "tp_plan" in row["tensor"][1] else []
        )
    is_refused = {name for name, styles in refused.items() if asked[name]["tensor"][1] == _refusal(styles)}
    by_question = {
        question: [*_answer_lines(question, asked, is_refused if question == "tensor" else set())]
        for question in IN_TABLE[1:]
    }
    by_plan: dict[str, list[str]] = {}
    for name, plan in plans.items():
        styles = {style: [n for n in plan if plan[n] == style] for style in dict.fromkeys(plan.values())}
        words = (
            [*["-"][: not plan], *refused[name]]
            if refused[name]
            else [" ".join((style, _fold(names))) for style, names in styles.items()]
        )
        by_plan.setdefault(", ".join(words).replace("layers.*.", "@"), []).append(name)
    by_plan.pop("", None)
    plan_lines = [line for plan, names in by_plan.items() for line in [*_one_answer("", {plan: names})][1:]]
    others = {
        word.strip(",") for lines in (*by_question.values(), plan_lines) for line in lines for word in line.split()
    }
    yield from ("", "[causal]", *_answer_lines("causal", rows, {name for name in asked if name in others}))
    for question, lines in by_question.items():
        yield from ("", f"[{question}]", *lines)
    yield from ("", "[dropout]", *_fill("", dropping), "", "[plan]", *plan_lines)


def _refusal(styles: list[str]) -> str:
    return model_table.REFUSED.format(styles)[:172]


def _answer_lines(question: str, rows: dict[str, Any], left_out: set[str]) -> list[str]:
    """The usual answer, then the others with the types that gave them, but for those `left_out`. Of reasons that differ
    in words alone those that are one in fewer lines are one.
    """
    other = IMPLIED.get(question, "")
    denied = {name: row for name, row in rows.items() if other and row[other][0] is False}
    implied = Counter(row[question][1] for row in denied.values()).most_common(1)[0][0] if denied else ""
    found: dict[str, dict[str, list[str]]] = {}
    usual: Counter[str] = Counter()
    merged: dict[str, list[tuple[list[str], str, dict[str, list[str]]]]] = {}
    for name, row in rows.items():
        holds, reason, names = row[question]
        answer = f"{ {True: 'yes', False: 'no', None: '?'}[holds] } {reason}"
        usual[answer] += 1
        if name in left_out:
            continue
        if name in denied and (reason, names) == (implied, row[other][2]):
            found.setdefault(answer, {}).setdefault(f"[{other}]" if names else "", [f"[{other}]"])
            continue
        stem = os.path.commonprefix(names[:2]) if len(names) > 2 and "." not in names[0] else ""  # noqa: RUF071
        words = [each.replace(" ", "&").replace(model_table.LAYER, "@") for each in names]
        text, entry = (" ".join(words).replace(stem, "~"), f"{name} {stem}") if len(stem) > 1 else (_fold(words), name)
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
    first = max(usual, key=lambda answer: usual[answer])
    own = [name for name in found.setdefault(first, {}).pop("", []) if name in denied]
    found[first] |= {"": own} if own else {}
    return [line for answer in (first, *sorted(found.keys() - {first})) for line in _one_answer(answer, found[answer])]


def _one_answer(answer: str, types: dict[str, list[str]]) -> Iterator[str]:
    """An answer and its types, by the names that it is about."""
    lines = [*_fill(answer, types.get("", []))] if types.keys() <= {""} else [answer]
    for text, names in sorted(types.items() if lines == [answer] else ()):
        *more, last = [*_wrap(text.split(" "), "  + ")] if text else [""]
        lines += [*more, *_fill(last, names)]
    yield from lines


def _fold(words: list[str]) -> str:
    """Names in a row that begin and end alike as one, `{q,k}_proj`, where that is shorter."""
    runs: list[list[str]] = []
    for word in words:
        if runs and len(_brace([*runs[-1], word])) <= len(_brace(runs[-1])) + len(word):
            runs[-1].append(word)
        else:
            runs.append([word])
    return " ".join(_brace(run) for run in runs)


def _brace(words: list[str]) -> str:
    start = re.sub(r"[^._@]*$", "", os.path.commonprefix(words))  # noqa: RUF071
    ends = [word[len(start) :] for word in words]
    end = re.sub(r"^[^._]*", "", os.path.commonprefix([each[::-1] for each in ends])[::-1])  # noqa: RUF071
    middle = ",".join(each[: len(each) - len(end)] for each in ends)
    return words[0] if len(words) == 1 else " ".join(words) if "." in middle else f"{start}{{{middle}}}{end}"


def _fill(start: str, entries: list[str]) -> Iterator[str]:
    """The types behind an answer or its last names, in a line where they fit into one; one type always."""
    line = f"{start} <- {', '.join(entries)}"
    if not entries or (start and (len(line) <= _WIDTH or (len(start) > _WIDTH and len(entries) == 1))):
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
