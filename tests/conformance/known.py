# SPDX-License-Identifier: Apache-2.0
"""Disagreements that are right as they are, each with the reason. Narrow: a predicate on the case and on what was said.

An entry that matches nothing in a long run is stale, and the report says so. Nothing that a gate could tell belongs here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .case import Case, get


class Known(NamedTuple):
    """`matches(case, our verdict as errors and warnings, what DeepSpeed did)` decides."""

    name: str
    reason: str
    matches: Callable[[Case, tuple[str, ...], dict[str, Any]], bool]


def _shape(case: Case, errors: tuple[str, ...], answer: dict[str, Any]) -> bool:
    """Only the loader objects, to a value of the wrong type or range, and DeepSpeed runs without having read it."""
    return bool(errors) and set(errors) <= {"SP006", "SP007"}


def _package(name: str) -> Callable[[Case, tuple[str, ...], dict[str, Any]], bool]:
    return lambda _case, _errors, answer: (
        (answer.get("error") or {}).get("message", "").startswith(f"No module named '{name}'")
    )


def _field(_case: Case, errors: tuple[str, ...], _answer: dict[str, Any]) -> bool:
    """Only that a run spec has a field of its own for a key that stands under `deepspeed`."""
    return set(errors) == {"SP010"}


def _negative(case: Case, errors: tuple[str, ...], _answer: dict[str, Any]) -> bool:
    """Only that a rate, a decay or an epsilon is below 0."""
    values = [get(case.config, f"optimizer.params.{name}") for name in ("eps", "weight_decay", "lr")]
    return set(errors) == {"OP006"} and any(isinstance(v, (int, float)) and v < 0 for v in values)


def _schedule(case: Case, errors: tuple[str, ...], _answer: dict[str, Any]) -> bool:
    """Only that a schedule of the run spec is not followed, beside a field that has a place of its own."""
    return "OP041" in errors and set(errors) <= {"OP041", "SP010"} and not case.config.get("scheduler")


def _universal(case: Case, _errors: tuple[str, ...], answer: dict[str, Any]) -> bool:
    """A JSON is good for a universal checkpoint, and the script here has an ordinary one."""
    message = (answer.get("error") or {}).get("message", "")
    return case.form == "json" and message.startswith("Invalid for universal checkpoint")


KNOWN: tuple[Known, ...] = (
    Known("shape", "a value of the wrong type or out of its range is an error wherever it stands, read or not", _shape),
    Known("field", "what a run spec has a field for must stand there, or two places would disagree some day", _field),
    Known("negative", "DeepSpeed steps with it, and no optimizer means it: torch's own refuse it", _negative),
    Known("schedule", "the script here has no schedule; the harness gives DeepSpeed the run spec's", _schedule),
    Known("universal", "which checkpoint the script loads is not in a DeepSpeed JSON (CK004 says so)", _universal),
    Known("tensorboard", "whether the package is installed on the nodes is not in the file", _package("tensorboard")),
    Known("wandb", "whether the package is installed on the nodes is not in the file", _package("wandb")),
)
