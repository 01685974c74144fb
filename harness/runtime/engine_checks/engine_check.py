# SPDX-License-Identifier: Apache-2.0
"""An engine check, its result, and the texts that checks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from harness.entry_file import read_entries
from harness.runtime.engine_checks.expected_settings import ExpectedSettings

if TYPE_CHECKING:
    from harness.runtime.engine_checks.observations import Observations

CheckMoment = Literal["built", "begun", "steps", "drift"]
"""`built`: after `deepspeed.initialize`. `begun`: before the first step, after a checkpoint was loaded. `steps`: after
some of the first 20 steps. `drift`: after the first step, then at intervals until the end."""


class NotApplicable(Exception):
    """The check does not apply to this run. The text says why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check, as engine_checks.json has it. With `differs`, `text` says what the engine has instead."""

    state: Literal["holds", "differs", "skipped"]
    text: str = ""
    has: object = None
    notes: tuple[str, ...] = ()


def check_passed(value: object = None) -> CheckResult:
    """The engine has what the spec asks for."""
    return CheckResult("holds", has=value)


def check_failed(text: str, value: object = None, *notes: str) -> CheckResult:
    """The engine has something else."""
    return CheckResult("differs", text, value, notes)


def check_skipped(why: str) -> CheckResult:
    """The check does not apply, or could not run."""
    return CheckResult("skipped", why)


def check_equal(expected: object, rank_values: Sequence[Any], name: str) -> CheckResult:
    """Every rank has the expected value, in the same type: `true` is not 1."""
    ranks = [
        rank
        for rank, value in enumerate(rank_values)
        if value != expected or isinstance(value, bool) != isinstance(expected, bool)
    ]
    if not ranks:
        return check_passed(rank_values[0])
    value = rank_values[ranks[0]]
    text = f"{name} is {format_value(value)}, should be {format_value(expected)}{format_ranks(ranks, len(rank_values))}"
    return check_failed(text, value)


def format_value(value: object) -> str:
    """A value as a user would write it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(sorted(f"`{v}`" for v in value)) or "none"
    return "not set" if value is None else f"`{value}`"


def format_ranks(ranks: Sequence[int], world: int) -> str:
    """` on rank 3`; empty for all ranks."""
    if len(ranks) == world:
        return ""
    numbers = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f" on rank{'s' * (len(ranks) > 1)} {numbers}"


@dataclass(frozen=True, slots=True)
class CheckName:
    """The id of a check, its name, and the question that it answers."""

    id: str
    name: str
    question: str


@dataclass(frozen=True, slots=True)
class EngineCheck(CheckName):
    """One check of the engine.

    `observe` reads plain values on each rank and makes no collective. `evaluate` compares the values of all ranks with
    the expected settings: every rank gets the same result. `gates` are the gates that report the fault before a run.
    """

    moment: CheckMoment
    observe: Callable[[Observations], Any]
    evaluate: Callable[[ExpectedSettings, Sequence[Any]], CheckResult]
    key: str = ""
    gates: tuple[str, ...] = ()
    fix: str = ""


_TEXTS = read_entries(Path(__file__).with_name("engine_checks.txt"))
_ENTRIES = {name.partition(" ")[0]: (name, fields) for name, fields in _TEXTS.items()}


def engine_check(
    id_: str,
    observe: Callable[[Observations], Any],
    evaluate: Callable[[ExpectedSettings, Sequence[Any]], CheckResult],
) -> EngineCheck:
    """The check of this id, with its texts in `engine_checks.txt`. Raises KeyError for an id that is not there."""
    name, fields = _ENTRIES[id_]
    return EngineCheck(
        id_,
        name.partition(" ")[2],
        fields["question"],
        cast("CheckMoment", fields["moment"]),
        observe,
        evaluate,
        fields.get("key", ""),
        tuple(filter(None, fields.get("gates", "").split(", "))),
        fields.get("fix", ""),
    )
