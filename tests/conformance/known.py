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


_UNREAD = {"SP013", "HF001"}
"""What the release does not read: a key of a newer one, and `"auto"` in DeepSpeed's hands."""


def _shape(case: Case, errors: tuple[str, ...], answer: dict[str, Any]) -> bool:
    """Only the loader objects, to a value of the wrong type or range, and DeepSpeed runs without having read it."""
    return bool(errors) and set(errors) <= {"SP006", "SP007", *_UNREAD}


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
    return set(errors) - _UNREAD == {"OP006"} and any(isinstance(v, (int, float)) and v < 0 for v in values)


def _schedule(case: Case, errors: tuple[str, ...], _answer: dict[str, Any]) -> bool:
    """Only that a schedule of the run spec is not followed, beside a field that has a place of its own."""
    return "OP041" in errors and set(errors) <= {"OP041", "SP010"} and not case.config.get("scheduler")


def _managed(case: Case, errors: tuple[str, ...], _answer: dict[str, Any]) -> bool:
    """Only that the script is asked to say where a step ends, and the script here steps at each micro-batch."""
    return not errors and case.config.get("managed_gradient_accumulation") is False


def _not_on_cpu(_case: Case, _errors: tuple[str, ...], answer: dict[str, Any]) -> bool:
    return "had not been implemented on CPU backend" in (answer.get("error") or {}).get("message", "")


def _newer_torch(_case: Case, _errors: tuple[str, ...], answer: dict[str, Any]) -> bool:
    return (answer.get("error") or {}).get("message", "").startswith("Output 0 of Split is a view")


def _first_scale(_case: Case, errors: tuple[str, ...], answer: dict[str, Any]) -> bool:
    """Only that three steps are too few for a loss scale that begins at 2 to the 32."""
    first = (answer.get("ranks") or [{}])[0]
    return not errors and first.get("scale") == 2**29 and first.get("skipped") == [1, 2, 3]


def _only(*gates: str) -> Callable[[Case, tuple[str, ...], dict[str, Any]], bool]:
    return lambda _case, errors, _answer: bool(errors) and set(errors) <= {*gates, *_UNREAD}


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
    Known("managed", "when to step is the script's then, as ZR027 says, and the script here does not", _managed),
    Known(
        "format", "a name of no number format is an error also where the model has nothing to convert", _only("PR006")
    ),
    Known("unread", 'a key of a newer release, or `"auto"`, is an error, though nothing else comes of it', _only()),
    Known("first scale", "up to 0.17.0 fp16 finds its loss scale from 2 to the 32 (docs/releases.md)", _first_scale),
    Known(
        "newer torch", "0.18.7 to 0.18.9 cannot step at stages 1 and 2 with torch 2.13 (docs/releases.md)", _newer_torch
    ),
    Known("cpu op", "the CPU accelerator of an old release lacks it, a GPU has it", _not_on_cpu),
    Known("tensorboard", "whether the package is installed on the nodes is not in the file", _package("tensorboard")),
    Known("wandb", "whether the package is installed on the nodes is not in the file", _package("wandb")),
)
