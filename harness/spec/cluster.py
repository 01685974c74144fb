"""The hosts of a run, read from a hostfile in DeepSpeed's grammar: `NAME slots=N`, `#` comments, one host a line.

Strict where DeepSpeed is not: it reads `slots=8x` as 8 and `slots=0` as nothing to do. Contacts no host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.findings import Finding, Fix, Label, Place

_LINE = re.compile(r"(?P<host>\S+)(?P<gap>\s+)(?P<slots>slots=(?P<count>\S*))(?P<rest>.*)")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f:.%]*:[0-9A-Fa-f:.%a-z]*\]?")


@dataclass(frozen=True, slots=True)
class Host:
    """One machine, as ssh knows it, and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts in the order in which ranks are numbered."""

    hosts: tuple[Host, ...]
    file: str = ""

    @property
    def num_slots(self) -> int:
        """Ranks that the hosts take together."""
        return sum(h.slots for h in self.hosts)

    @staticmethod
    def of(pairs: Iterable[Sequence[str | int]], file: str = "") -> Cluster:
        """From (name, slots) pairs."""
        return Cluster(tuple(Host(str(name), int(slots)) for name, slots in pairs), file)


def parse_hostfile(text: str, file: str) -> tuple[Cluster | None, list[Finding]]:
    """Hosts and findings; the cluster is None when there is an error among them.

    Grammar: DeepSpeed's (`launcher/runner.py`, `_parse_hostfile`), anchored at the end of the line.
    """
    hosts: list[Host] = []
    first_seen: dict[str, Place] = {}
    findings: list[Finding] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.split("#", 1)[0].rstrip()
        if not line.strip():
            continue
        finding = _read_line(
            line, Place(file, number, len(line) - len(line.lstrip()) + 1, len(line.strip())), hosts, first_seen
        )
        if finding:
            findings.append(finding)
    if not hosts and not findings:
        findings.append(
            Finding(
                "HO002",
                "error",
                "the hostfile names no host",
                place=Place(file, 1, 1),
                notes=("DeepSpeed stops with `Hostfile is empty` once the job has been scheduled",),
                fix=Fix("write one line a host, such as `worker-0 slots=8`"),
            )
        )
    return (None if findings else Cluster(tuple(hosts), file)), findings


def _read_line(line: str, place: Place, hosts: list[Host], first_seen: dict[str, Place]) -> Finding | None:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return _bad(
            place, f"`{line.strip()}` is not a line of a hostfile", "write `NAME slots=N`, such as `worker-0 slots=8`"
        )
    name, count, rest = match["host"], match["count"], match["rest"].strip()
    slots_place = Place(
        place.file, place.line, place.column + match.start("slots"), len(match["slots"] + match["rest"])
    )
    if not _HOST.fullmatch(name):
        return _bad(
            Place(place.file, place.line, place.column, len(name)),
            f"`{name}` is not a host name or address",
            "write a host name that ssh takes",
        )
    if not count.isascii() or not count.isdigit() or len(count) > 6 or rest:
        seen = re.match(r"\d+", count)
        note = (f"DeepSpeed reads it as {seen[0]} and ignores the rest of the line",) if seen else ()
        return _bad(
            slots_place,
            f"`{(match['slots'] + match['rest']).strip()}` is not `slots=` and a whole number",
            "write `slots=N` and nothing after it",
            note,
        )
    if int(count) == 0:
        return _bad(
            slots_place,
            f"host `{name}` has no slots",
            "give it at least one slot or remove the line",
            ("DeepSpeed starts nothing there and ends with exit code 0",),
        )
    if name in first_seen:
        return Finding(
            "HO004",
            "error",
            f"host `{name}` is listed twice",
            place=place,
            label="again here",
            related=(Label(first_seen[name], "first here"),),
            notes=("DeepSpeed refuses it: `Hostfile contains multiple entries`",),
            fix=Fix("keep one line and add its slots up"),
        )
    first_seen[name] = Place(place.file, place.line, place.column, len(name))
    hosts.append(Host(name, int(count)))
    return None


def _bad(place: Place, message: str, title: str, notes: tuple[str, ...] = ()) -> Finding:
    return Finding("HO003", "error", message, place=place, notes=notes, fix=Fix(title))


def read_hostfile(path: str) -> tuple[Cluster | None, list[Finding]]:
    """`parse_hostfile` of a file; a file that cannot be read is finding HO001."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        undecoded = isinstance(error, UnicodeDecodeError)
        reason = "is not text" if undecoded else (getattr(error, "strerror", None) or str(error)).lower()
        return None, [
            Finding(
                "HO001",
                "error",
                f"hostfile `{path}` cannot be read: {reason}",
                place=Place(path, 1, 1),
                notes=("DeepSpeed only warns about a missing hostfile, then trains on this machine alone",),
                fix=Fix("name an existing hostfile, or leave it out to run on this machine"),
            )
        ]
    return parse_hostfile(text, path)
