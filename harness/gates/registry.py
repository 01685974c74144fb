"""The type of a gate, and the list of all gates. A gate is data and one function; nothing here knows any rule."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

from harness.facts.deepspeed_version import Version, parse_version
from harness.findings import Finding, Upstream
from harness.gates.context import Context

__all__ = ["CheckFunction", "Cite", "Context", "Gate", "Need", "all_gates", "gate"]

Need = Literal["world size", "a launch", "a run spec", "model facts", "the accelerator", "hosts", "the hosts' answers"]


class Cite(NamedTuple):
    """A place in DeepSpeed's source: the file below `deepspeed/` and a few words that stand there (no line number)."""

    file: str
    quote: str


CheckFunction = Callable[[Context], Iterator[Finding]]
Precondition = Callable[[Context], bool]


class Gate(NamedTuple):
    """One rule: its name, its source, its releases, and the function that checks it."""

    id: str
    name: str
    upstream: Upstream
    cites: tuple[Cite, ...]
    since: Version | None
    until: Version | None
    needs: tuple[Need, ...]
    page: str
    when: Precondition | None
    policy: str
    unseen: str
    ignorable: bool
    check: CheckFunction

    @property
    def title(self) -> str:
        """The first line of the page."""
        return self.page.strip().splitlines()[0].rstrip(".")

    def section(self, heading: str) -> str:
        """The text below a `## heading` of the page; empty when there is none."""
        match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.page, re.MULTILINE | re.DOTALL)
        return match[1].strip("\n") if match else ""

    def applies_to(self, version: Version) -> bool:
        """Is the rule true of this DeepSpeed?"""
        return (self.since is None or version >= self.since) and (self.until is None or version <= self.until)

    @property
    def versions(self) -> str:
        """`all`, `0.18.3 and newer`, `0.18.3 to 0.19.8`, `0.18.3`."""
        first, last = (".".join(map(str, v)) if v else None for v in (self.since, self.until))
        if first and last:
            return first if first == last else f"{first} to {last}"
        return f"{first} and newer" if first else f"up to {last}" if last else "all"


_GATES: dict[str, Gate] = {}


def gate(
    id: str,  # noqa: A002
    name: str,
    *,
    upstream: Upstream,
    cites: Sequence[Cite] = (),
    since: str | None = None,
    until: str | None = None,
    needs: Sequence[Need] = (),
    when: Precondition | None = None,
    policy: str = "",
    unseen: str = "",
    ignorable: bool = True,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register the decorated function as a gate; its module's docstring is the page.

    `when` is a cheap guard: a gate that it calls irrelevant has nothing to say and misses no facts. `policy` is why the
    gate refuses what the installed DeepSpeed would run. `unseen` is what a machine would need to see the claim happen,
    where the CPU accelerator cannot show it. What is not `ignorable` is no matter of the spec's own: its `ignore` does
    not count.
    """

    def register(check: CheckFunction) -> CheckFunction:
        if id in _GATES and _GATES[id].check.__module__ != check.__module__:
            raise ValueError(f"gate {id} is defined twice")
        page = vars(sys.modules[check.__module__])["__doc__"] or ""
        first, last = (parse_version(v) if v else None for v in (since, until))
        _GATES[id] = Gate(
            id, name, upstream, tuple(cites), first, last, tuple(needs), page, when, policy, unseen, ignorable, check
        )
        return check

    return register


@cache
def all_gates() -> tuple[Gate, ...]:
    """All gates, by id. Importing a module of a family registers its gates."""
    files = Path(__file__).parent.glob("[!_]*/[!_]*.py")
    for module in sorted(f"harness.gates.{file.parent.name}.{file.stem}" for file in files):
        import_module(module)
    return tuple(_GATES[key] for key in sorted(_GATES))
