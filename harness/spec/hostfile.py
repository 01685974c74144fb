# SPDX-License-Identifier: Apache-2.0
"""The hosts of a run, from a hostfile in DeepSpeed's grammar: `NAME slots=N`, `#` comments, one host a line.

Strict where DeepSpeed is not: it reads `slots=8x` as 8 and `slots=0` as nothing to do. Contacts no host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness import input_limits
from harness.file_io import read_regular
from harness.findings import Finding, Fix, Label, Place
from harness.hostinfo.path_probe import answer_in_time

_LINE = re.compile(r"(?P<host>\S+)(?P<gap>\s+)(?P<slots>slots=(?P<count>\S*))(?P<rest>.*)")
_HOST_LINE = re.compile(r"^[ \t]*\S+[ \t]+slots=\d", re.MULTILINE)
_MAX_LINE_LENGTH = 1000
_MAX_ALIKE = 8
_MPI_DIALECTS = (("max_slots|max-slots|cpu|ppn|sockets", "Open MPI or Torque"), ("binding|ifhn|user", "MPICH"))
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f:.%]*:[0-9A-Fa-f:.%a-z]*\]?")


class Host(NamedTuple):
    """One machine under its name for ssh, and the number of its ranks."""

    name: str
    slots: int
    devices: tuple[int, ...] | None = None
    """Its devices, where they are not the first `slots` ones."""

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The devices that ranks take."""
        return self.devices if self.devices is not None else tuple(range(self.slots))


class Cluster(NamedTuple):
    """The hosts in the order in which ranks are numbered."""

    hosts: tuple[Host, ...]
    file: str = ""

    @property
    def num_slots(self) -> int:
        """Ranks that the hosts take together."""
        return sum(host.slots for host in self.hosts)

    @staticmethod
    def from_pairs(pairs: Iterable[Sequence[str | int]], file: str = "") -> Cluster:
        """From (name, slots) pairs."""
        return Cluster(tuple(Host(str(name), int(slots)) for name, slots in pairs), file)


def parse_hostfile(text: str, file: str) -> tuple[Cluster | None, list[Finding]]:
    """Hosts and findings, which are errors; the cluster is None where a line's host or slots are not clear.

    Grammar: DeepSpeed's (`launcher/runner.py`, `_parse_hostfile`), anchored at the end of the line. It stops after
    1,000 findings; of many that are alike, one stands for all.
    """
    hosts: list[Host] = []
    first_places: dict[str, Place] = {}
    findings: list[Finding] = []
    num_lines = 0
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.split("#", 1)[0].rstrip()
        if not line.strip():
            continue
        num_lines += 1
        finding = _parse_line(
            line, Place(file, number, len(line) - len(line.lstrip()) + 1, len(line.strip())), hosts, first_places
        )
        if finding:
            findings.append(finding)
        if len(findings) == input_limits.FINDINGS:  # nobody reads more, and a cluster is out of the question
            return None, _merge_alike(findings)
    if not hosts and not findings:
        findings.append(
            Finding(
                "HO002",
                "error",
                "the hostfile names no host",
                place=Place(file, 1, 1),
                notes=("DeepSpeed stops with `Hostfile is empty` once the job has been scheduled",),
                fix=Fix("write one line per host, such as `worker-0 slots=8`"),
            )
        )
    return (Cluster(tuple(hosts), file) if hosts and len(hosts) == num_lines else None), _merge_alike(findings)


def _merge_alike(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings, but one alone for many lines with the same mistake, which a script wrote."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kind = re.sub(r"`[^`]*`|\d+", "", finding.message)
        groups.setdefault((finding.gate, kind), []).append(finding)
    merged: list[Finding] = []
    for group in groups.values():
        if len(group) <= _MAX_ALIKE:
            merged += group
            continue
        lines = ", ".join(str(finding.place.line) for finding in group[1:4] if finding.place is not None)
        count = f"{len(group) - 1:,}" + (" or more" if len(findings) == input_limits.FINDINGS else "")
        note = f"{count} other lines have the same mistake, such as {lines}"
        merged.append(group[0]._replace(notes=(*group[0].notes, note)))
    return merged


def hostfile_text(cluster: Cluster) -> str:
    """The hostfile that DeepSpeed reads: as many slots as the last device that is used asks for."""
    return "".join(f"{h.name} slots={max(h.devices) + 1 if h.devices else h.slots}\n" for h in cluster.hosts)


def _parse_line(line: str, place: Place, hosts: list[Host], first_places: dict[str, Place]) -> Finding | None:
    match = _LINE.fullmatch(line.strip()) if len(line) <= _MAX_LINE_LENGTH else None
    if match is None or "@" in match["host"]:
        return _parse_user_line(match, place, hosts, first_places) if match else _bad_line_finding(line.strip(), place)
    name, count, rest = match["host"], match["count"], match["rest"].strip()
    slots_place = Place(
        place.file, place.line, place.column + match.start("slots"), len(match["slots"] + match["rest"])
    )
    if not _HOST.fullmatch(name):
        return _syntax_finding(
            Place(place.file, place.line, place.column, len(name)),
            f"`{printable_excerpt(name)}` is not a host name or address",
            "write a host name that ssh accepts",
        )
    if not count.isascii() or not count.isdigit() or len(count) > 6 or rest:
        digits = re.match(r"\d+", count)
        note = (f"DeepSpeed reads it as {digits[0]} and ignores the rest of the line",) if digits else ()
        return _syntax_finding(
            slots_place,
            f"`{printable_excerpt((match['slots'] + match['rest']).strip())}` is not `slots=` and a whole number",
            "write `slots=N` and nothing after it",
            (*note, *_dialect_notes(rest)),
        )
    if int(count) == 0:
        return _syntax_finding(
            slots_place,
            f"host `{name}` has no slots",
            "give it at least one slot or remove the line",
            ("DeepSpeed starts nothing there and ends with exit code 0",),
        )
    if name in first_places:
        return Finding(
            "HO004",
            "error",
            f"host `{name}` is listed twice",
            place=place,
            label="again here",
            related=(Label(first_places[name], "first here"),),
            notes=("DeepSpeed refuses it: `Hostfile contains multiple entries`",),
            fix=Fix("keep one line with the sum of the slots"),
        )
    first_places[name] = Place(place.file, place.line, place.column, len(name))
    hosts.append(Host(name, int(count)))
    return None


def _parse_user_line(match: re.Match[str], place: Place, hosts: list[Host], first_places: dict[str, Place]) -> Finding:
    """A line for ssh and pdsh alone: to all else, what stands before `slots=` is the name of a machine. The machine and
    its slots count for other findings.
    """
    user, _, name = match["host"].rpartition("@")
    place = Place(place.file, place.line, place.column, len(match["host"]))
    if not _USER.fullmatch(user) or not _HOST.fullmatch(name):
        message = f"`{printable_excerpt(match['host'])}` is not a host name or address"
        return _syntax_finding(place, message, "write a host name that ssh accepts")
    slots = int(match["count"]) if re.fullmatch(r"[0-9]{1,6}", match["count"]) and not match["rest"].strip() else 0
    if slots and name not in first_places:
        hosts.append(Host(name, slots))
        first_places[name] = place
    return _syntax_finding(
        place,
        f"`{printable_excerpt(match['host'])}` names a user, and a line of a hostfile names only a machine",
        f"write `{name} slots={slots or 'N'}`, and `Host {name}` with `User {user}` below it in `~/.ssh/config`",
        (
            "DeepSpeed passes it on to ssh and pdsh, but its `--include` splits at `@`, and MPI and Slurm take no user",
            "ranks start in the same folder and with the same Python on every host, whoever the user is",
        ),
    )


def _bad_line_finding(line: str, place: Place) -> Finding:
    """A line in a grammar of MPI, with the line that DeepSpeed takes."""
    if len(line) > _MAX_LINE_LENGTH:
        return _syntax_finding(place, f"a line of {len(line)} characters is no host", "write `NAME slots=N`")
    name, colon, count = line.partition(":")
    if colon and count.strip().isdigit() and _HOST.fullmatch(name):
        note = ("`HOST:N` is how MPICH and Intel MPI count processes; DeepSpeed refuses it",)
        return _syntax_finding(
            place,
            f"`{printable_excerpt(line)}` is not a line of a hostfile",
            f"write `{name} slots={int(count)}`",
            note,
        )
    if _HOST.fullmatch(line):
        note = ("Open MPI counts one slot for a bare name, or all cores; DeepSpeed refuses it",)
        return _syntax_finding(
            place,
            f"`{printable_excerpt(line)}` names a host without slots",
            f"write `{printable_excerpt(line)} slots=N`",
            note,
        )
    match = re.fullmatch(r"(\S+)\s+slots?\s*[:=]?\s*(\d{1,6})", line, re.IGNORECASE)
    if match and _HOST.fullmatch(match[1]):
        fix = f"write `{match[1]} slots={int(match[2])}`"
        return _syntax_finding(
            place, f"`{printable_excerpt(line)}` is not a line of a hostfile", fix, ("`slots=N` is one word",)
        )
    hint = "write `NAME slots=N`, such as `worker-0 slots=8`"
    return _syntax_finding(
        place, f"`{printable_excerpt(line)}` is not a line of a hostfile", hint, _dialect_notes(line)
    )


def _dialect_notes(text: str) -> tuple[str, ...]:
    """The program whose words these are."""
    for names, program in _MPI_DIALECTS:
        if re.search(rf"(^|\s)({names})\s*=", text):
            return (f"`{names.replace('|', '=`, `')}=` is {program}'s; DeepSpeed knows only `slots=`",)
    return ()


def printable_excerpt(text: str, limit: int = 60) -> str:
    """The user's text in a message: one line of printable ASCII, cut at `limit`."""
    printable = "".join(char if " " <= char <= "~" else f"\\x{ord(char):02x}" for char in text[: limit + 1])
    return printable if len(text) <= limit else printable[:limit] + "..."


def _syntax_finding(place: Place, message: str, title: str, notes: tuple[str, ...] = ()) -> Finding:
    return Finding("HO003", "error", message, place=place, notes=notes, fix=Fix(title))


def read_hostfile(path: str, *, named_by_spec: bool = False) -> tuple[Cluster | None, list[Finding]]:
    """`parse_hostfile` of a file; a file that cannot be read is finding HO001.

    `named_by_spec`: a spec from somebody else may name any file of this machine, so a file without a line of a hostfile
    is not quoted.
    """
    try:
        text = answer_in_time(path, lambda: read_regular(Path(path), input_limits.HOSTFILE)).decode("utf-8-sig")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:
        is_binary = isinstance(error, UnicodeDecodeError)
        reason = "is not text" if is_binary else (getattr(error, "strerror", None) or str(error)).lower()
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
    cluster, findings = parse_hostfile(text, path)
    if named_by_spec and findings and not _HOST_LINE.search(text):
        return None, [_not_a_hostfile_finding(text, path)] if text.strip() else findings
    return cluster, findings


def _not_a_hostfile_finding(text: str, path: str) -> Finding:
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines, start=1) if line.strip())
    return Finding(
        "HO003",
        "error",
        f"`{path}` is no hostfile: none of its {len(lines)} lines is `NAME slots=N`",
        place=Place(path, first, 1),
        notes=("its lines are not shown, because the spec names it; with `--hostfile` they are",),
        fix=Fix("write one line per host, such as `worker-0 slots=8`"),
    )
