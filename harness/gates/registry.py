# SPDX-License-Identifier: Apache-2.0
"""The type of a gate, and the list of all gates. Nothing here knows any rule.

A gate is a function that yields findings, with its data in the decorator and its page in the docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

from harness.facts.deepspeed_version import Version, parse_version
from harness.findings import Finding, Fix, Severity, Upstream
from harness.gates.context import Context
from harness.gates.page import Page, parse_page

__all__ = [  # what a module of rules imports
    "Cite",
    "Context",
    "Finding",
    "Findings",
    "Fix",
    "Gate",
    "Need",
    "Severity",
    "all_gates",
    "gate",
    "hosts_gate",
    "spec_gate",
]

Need = Literal["world size", "a launch", "a run spec", "model facts", "the accelerator", "hosts", "the hosts' answers"]


class Cite(NamedTuple):
    """A place in DeepSpeed's source: the file below `deepspeed/` and a few words that stand there (no line number).

    It stands in every release that its gate speaks of, or in those from `since` to `until`.
    """

    file: str
    quote: str
    since: str = ""
    until: str = ""


Findings = Iterator[Finding]
"""What a gate yields."""
CheckFunction = Callable[[Context], Findings]
Condition = Callable[[Context], bool]


class Gate(NamedTuple):
    """One rule: its name, its source, its releases, and the function that checks it."""

    id: str
    name: str
    docstring: str
    check: CheckFunction
    upstream: Upstream
    severities: tuple[Severity, ...]
    cites: tuple[Cite, ...]
    since: Version | None
    until: Version | None
    needs: tuple[Need, ...]
    when: Condition | None
    unread: str
    policy: str
    unseen: str
    ignorable: bool

    @property
    def page(self) -> Page:
        """The docstring, section by section."""
        return parse_page(self.id, self.docstring)

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
    heading: str,
    *,
    upstream: Upstream = "silent",
    severity: Severity | tuple[Severity, ...] = "error",
    cites: Cite | Sequence[Cite] = (),
    since: str | None = None,
    until: str | None = None,
    needs: Sequence[Need] = (),
    when: Condition | None = None,
    unread: str = "",
    policy: str = "",
    unseen: str = "",
    ignorable: bool = True,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register the decorated function as a gate; `heading` is its id and its name, its docstring is the page.

    `upstream` is what DeepSpeed does with such a file: mostly nothing that a user sees. `severity` is that of its
    findings; of several, the first is that of a finding that names none. `since` and `until` are the first and the last
    release that the rule is true of. `when` says cheaply which files the rule is about: of others the gate has nothing
    to say, and misses none of the facts in `needs`. `unread` is why a value that the safe fix replaces does nothing (a
    test asks for it). `policy` is why the gate refuses what the installed DeepSpeed would run. `unseen` is what a
    machine would need to see the claim happen, where the CPU accelerator cannot show it. What is not `ignorable` is no
    matter of the spec's own: its `ignore` does not count.
    """
    gate_id, _, name = heading.partition(" ")
    severities: tuple[Severity, ...] = (severity,) if isinstance(severity, str) else severity
    first, last = (parse_version(v) if v else None for v in (since, until))

    def register(check: CheckFunction) -> CheckFunction:
        if gate_id in _GATES:
            raise ValueError(f"gate {gate_id} is defined twice")
        _GATES[gate_id] = Gate(
            id=gate_id,
            name=name,
            docstring=check.__doc__ or "",
            check=check,
            upstream=upstream,
            severities=severities,
            cites=(cites,) if isinstance(cites, Cite) else tuple(cites),
            since=first,
            until=last,
            needs=tuple(needs),
            when=when,
            unread=unread,
            policy=policy,
            unseen=unseen,
            ignorable=ignorable,
        )
        return check

    return register


spec_gate = partial(gate, needs=("a run spec",))
"""Registers a gate of run specs: it has nothing to say of a DeepSpeed JSON."""
hosts_gate = partial(gate, needs=("the hosts' answers", "hosts"), unseen="needs several hosts")
"""Registers a gate of what the hosts of a launch answered."""


@cache
def all_gates() -> tuple[Gate, ...]:
    """All gates, by id. Importing a module of rules registers its gates."""
    for file in sorted(Path(__file__).with_name("rules").glob("[!_]*.py")):
        import_module(f"harness.gates.rules.{file.stem}")
    return tuple(_GATES[key] for key in sorted(_GATES))
