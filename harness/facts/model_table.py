# SPDX-License-Identifier: Apache-2.0
"""The answers of every model type of one release of `transformers`, measured on small copies and shipped as data.

`benchmarks/model_table.py` writes `model_table.json`; `python -m harness.views.models_page > docs/models.md` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.hostinfo.machine import package_version
from harness.hostinfo.model_answers import ModelAnswers

_FILE = Path(__file__).with_name("model_table.json")
_SIGNS = {1: True, 0: False, -1: None}


@cache
def read_table() -> dict[str, Any]:
    """The file: `made`, `command`, `releases`, and the rows, which `find_row` reads."""
    return dict(json.loads(_FILE.read_text(encoding="utf-8")))


def find_row(model_type: Any) -> ModelAnswers | None:
    """The answers of a model type with its default configuration; None for one that the release did not have."""
    row = read_table()["rows"].get(model_type) if isinstance(model_type, str) else None
    if row is None:
        return None
    reasons = read_table()["reasons"]
    cells = zip(read_table()["questions"], row, strict=True)
    return ModelAnswers.from_fields({name: [_SIGNS[cell[0]], reasons[cell[1]], cell[2:]] for name, cell in cells})


def holds(model_type: Any, question: str) -> bool | None:
    """The table's answer; None where it is not known."""
    row = find_row(model_type)
    return None if row is None else row.answer_to(question).holds


def tensor_plan(model_type: str) -> Mapping[str, str]:
    """The tensor plan of `transformers` for a type, style by name of module, without the embeddings; empty without."""
    index = read_table()["plan_of"].get(model_type)
    plan: dict[str, str] = {} if index is None else read_table()["plans"][index]
    return plan


def release_note() -> str:
    """Whose answers these are, for a machine with another release of `transformers`; empty on any other machine."""
    if is_of_installed_release():
        return ""
    installed = package_version("transformers")
    return f"measured with transformers {read_table()['releases']['transformers']}, and {installed} is installed here"


def is_of_installed_release() -> bool:
    """Is the installed `transformers` the release of the table, but for its last number, or not installed at all?"""
    installed = package_version("transformers")
    measured: str = read_table()["releases"]["transformers"]
    return installed is None or installed.split(".")[:2] == measured.split(".")[:2]
