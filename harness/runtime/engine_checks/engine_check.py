"""What a claim is, and what is said about it. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.runtime.engine_checks.expected_settings import ExpectedSettings

if TYPE_CHECKING:
    from harness.runtime.engine_checks.observations import Observations

CheckMoment = Literal["built", "begun", "steps", "drift"]
"""After `deepspeed.initialize`; after a checkpoint was loaded, before the first step; after some of the first 20 steps;
in those and every so many steps until the end."""


class NotApplicable(Exception):
    """This run has nothing that the claim is about; the text says why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`differs` says in `text` what the engine has instead, as a clause that follows "the spec asks for X, but"."""

    state: Literal["holds", "differs", "skipped"]
    text: str = ""
    has: Any = None
    notes: tuple[str, ...] = ()


def check_passed(has: Any = None) -> CheckResult:
    """The engine has what was asked for."""
    return CheckResult("holds", has=has)


def check_failed(text: str, has: Any = None, *notes: str) -> CheckResult:
    """It has not."""
    return CheckResult("differs", text, has, notes)


def check_skipped(why: str) -> CheckResult:
    """Nobody can tell, or there is nothing to tell."""
    return CheckResult("skipped", why)


def check_equal(asked: Any, found: Sequence[Any], what: str) -> CheckResult:
    """Every rank has the value that was asked for, in the same type: `true` is not 1."""
    other = [rank for rank, has in enumerate(found) if has != asked or isinstance(has, bool) != isinstance(asked, bool)]
    if not other:
        return check_passed(found[0])
    has = found[other[0]]
    return check_failed(
        f"{what} is {format_value(has)}, should be {format_value(asked)}{format_ranks(other, len(found))}", has
    )


def format_value(value: Any) -> str:
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
    """` on rank 3`, or nothing where it is all of them."""
    if len(ranks) == world:
        return ""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f" on rank{'s' * (len(ranks) > 1)} {shown}"


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """One thing that a run says of itself.

    `look` is asked on each rank by itself and makes no collective; it returns plain values. `judge` gets what was asked
    for and those values by rank, the same on every rank. `gates` are the gates that would have said it before.
    """

    id: str
    name: str
    question: str
    moment: CheckMoment
    observe: Callable[[Observations], Any]
    evaluate: Callable[[ExpectedSettings, Sequence[Any]], CheckResult]
    key: str = ""
    gates: tuple[str, ...] = ()
    fix: str = ""
