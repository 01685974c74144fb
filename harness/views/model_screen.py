# SPDX-License-Identifier: Apache-2.0
"""All answers of a model, on one screen or as JSON. Asks nothing."""

from __future__ import annotations

import json
import textwrap

from harness.hostinfo.model_answers import QUESTIONS, ModelAnswers
from harness.views.style import Style

_TITLES = {
    "causal": ("predicts the next token", "MD164"),
    "apart": ("keeps packed documents apart", "MD020"),
    "borders": ("  by their boundaries alone", "MD024"),
    "kernels": ("  in its other layers", "MD020"),
    "sequence": ("splits over a sequence group", "SQ101"),
    "tensor": ("divides by its tensor plan", "TP027"),
    "pipeline": ("is a stack of pipeline layers", "PP101"),
    "checkpointing": ("recomputes the same numbers", "MD168"),
    "loss": ("computes its loss in chunks", ""),
    "lora": ("has LoRA in every layer", "MD166"),
    "qlora": ("has every layer in 4 bits", "MD166"),
    "export": ("loads what it has saved", "MD167"),
    "zero3": ("  into the shards of ZeRO-3", "MD167"),
    "size": ("can be counted", ""),
}
_MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}
_WIDTH = 112


def render_answers(name: str, answers: ModelAnswers, style: Style) -> str:
    """A line a question, with its reason; the names that it is about below. The id is for `harness explain`."""
    lines = [style.paint(f"{name}: a small copy of it, and what this program does with it", "", bold=True)]
    width = max(len(title) for title, _ in _TITLES.values())
    for question in QUESTIONS:
        (title, page), answer = _TITLES[question], answers.answer_to(question)
        mark, colour = _MARKS[answer.holds]
        indent = " " * (width + 16)
        names = [] if question == "pipeline" and answer.holds else answer.names
        text = [answer.reason, *([", ".join(names)] if names else [])]
        first, *rest = [line for part in text for line in textwrap.wrap(part, _WIDTH - len(indent)) or [""]]
        lines.append(f"  {style.paint(mark.ljust(3), colour)}  {title.ljust(width)}  {page.ljust(5)}  {first}".rstrip())
        lines += [f"{indent}{line}" for line in rest]
    return "\n".join(lines)


def answers_as_json(name: str, answers: ModelAnswers) -> str:
    """`{"model", "answers": {question: {"holds", "reason", "names"}}}`."""
    body = {question: answers.answer_to(question)._asdict() for question in QUESTIONS}
    return json.dumps({"model": name, "answers": body}, indent=2)
