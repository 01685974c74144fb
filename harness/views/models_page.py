# SPDX-License-Identifier: Apache-2.0
"""The table of models as a page: `python -m harness.views.models_page > docs/models.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness.facts.model_table import find_row, read_table
from harness.hostinfo.model_answers import ModelAnswers, unknown_answers

_COLUMNS = {
    "planned": "planned",
    "apart": "packed",
    "borders": "by borders",
    "sequence": "Ulysses",
    "tensor": "AutoTP",
    "pipeline": "pipeline",
    "checkpointing": "checkpointing",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "loss": "chunked loss",
    "export": "saved names",
    "zero3": "ZeRO-3 load",
}


def render_page() -> Iterator[str]:
    """The lines of docs/models.md."""
    table = read_table()
    releases = ", ".join(f"{name} {release}" for name, release in table.releases.items())
    yield "# Models"
    yield ""
    yield "<!-- python -m harness.views.models_page > docs/models.md -->"
    yield ""
    yield f"Every causal and image-text `model_type` of `transformers`, asked on {table.head['made']} by"
    yield f"`{table.head['command']}` ({releases}). A small copy of its default configuration answered"
    yield "([questions](model-questions.md)); `harness doctor --model FOLDER` asks a configuration of your own."
    yield ""
    yield "`yes`, `no`, `part`: in some of its layers only; `-`: not tried. The notes below have the reason of each"
    yield "`no`, `part` and `-`. A type without a class under `AutoModelForCausalLM` cannot be trained, and stands in"
    yield "the last list."
    yield ""
    yield f"| `model_type` | {' | '.join(_COLUMNS.values())} |"
    yield f"| --- |{' --- |' * len(_COLUMNS)}"
    notes: dict[str, list[str]] = {}
    others = []
    for name in table.types:
        row = find_row(name) or unknown_answers("")
        if row.causal is not True:
            others.append((name, row.why_causal))
            continue
        yield f"| `{name}` | {' | '.join(_cell(row, question) for question in _COLUMNS)} |"
        for question, title in _COLUMNS.items():
            answer = row.answer_to(question)
            if answer.holds is not True or (question == "tensor" and answer.names):
                names = f": {', '.join(f'`{each}`' for each in answer.names)}" if answer.names else ""
                notes.setdefault(f"{title}: {_escape(answer.reason)}{names}", []).append(name)
    yield ""
    yield "## Reasons"
    yield ""
    for note, types in sorted(notes.items()):
        yield f"* {note} ({', '.join(f'`{each}`' for each in types)})"
    yield ""
    yield "## Not causal, or not tried"
    yield ""
    for name, reason in others:
        yield f"* `{name}`: {_escape(reason)}"


def _cell(row: ModelAnswers, question: str) -> str:
    answer = row.answer_to(question)
    if answer.holds is None:
        return "-"
    is_part = (question == "tensor" and answer.holds and answer.names) or (
        question in ("lora", "qlora") and not answer.holds and answer.names
    )
    return "part" if is_part else "yes" if answer.holds else "no"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    sys.stdout.write("\n".join(render_page()) + "\n")
