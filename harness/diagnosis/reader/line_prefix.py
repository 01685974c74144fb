# SPDX-License-Identifier: Apache-2.0
"""The prefixes of a line: host, rank and time, as launchers, schedulers and loggers write them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import NamedTuple

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
_HOST = re.compile(r"([A-Za-z][\w.-]{0,80}|\d{1,3}(?:\.\d{1,3}){3}): (?=\S| )")
_TORCH = re.compile(r"[ \t]*\[(?:rank|default|worker_?)(\d+)\]: ?", re.IGNORECASE)
_SLURM = re.compile(r"(\d{1,5}): ?(?=\S|\s)")
_MPI = re.compile(r"\[\d+,(\d+)\]<std(?:out|err)>: ?")
_POD = re.compile(r"\[?(?:pod/)?([a-z0-9][a-z0-9.-]*-(?:worker|master|launcher)[a-z0-9.-]*)(?:/[\w-]+)?[\]:|]\s")
_RAY = re.compile(r"\((?P<name>[A-Za-z_][\w:.\-]*) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:-]+))?\) ?")
_RAY_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_UPTIME = re.compile(r"\[ *\d+\.\d{6}\] ?")
_SYSLOG_WRITER = re.compile(
    r"([\w.-]+) ((?:kernel|systemd|slurm\w*|kubelet|containerd|dockerd|earlyoom)(?:\[\d+\])?): ?"
)
_ISO = re.compile(r"\[?(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s?")
_GLOG = re.compile(r"\[?([EWIF])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9}) ?(?: *\d+ (?=\S+:\d+\]))?")
_GLOG_WARNING = re.compile(r"\[?W\d{3,4} ")
_SYSLOG = re.compile(r"\[?(?:\w{3} )?(\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?: \d{4})?\]?\s?")
_CLOCK = re.compile(r"\[?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?\]?\s")
_RANK_IN_TEXT = re.compile(r"\[[Rr]ank[ :]?(\d+)\]|\bRANK[=: ](\d+)|\b[Gg]lobal[ _]?rank[=: ]+(\d+)|\b[Rr]ank (\d+)\b")
_NOT_HOST_NAMES = frozenset(
    """error warning info note fatal debug usage message what raise assert return file exception traceback nvidia
    epoch step loss srun slurmstepd mpirun deepspeed torchrun python bash sh ssh pdsh ninja kernel launcher critical
    mkdir cat c++ g++ gcc nvcc ld cc1plus help hint running exec time host rank exitcode error_file train default
    caused root hostname name details reason code import""".split()
)
_DOMAIN = re.compile(r"\d|\.(?:com|net|org|internal|local|cluster)")
_HOST_MARK = re.compile(r"[\d.-]")
_GROUP = re.compile(r"(?: {2})+[|+] (?=\s*(?:File \"|Traceback|Exception Group|[\w.]*(?:Error|Exception)\w*: | ))")
"""What Python prints before each line of an exception group."""
_MONTHS = {m: i for i, m in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}


class ParsedLine(NamedTuple):
    """The text of a line and the values of its prefixes. `stream` identifies the writer, as far as the line shows.
    `is_warning`: torch logged it as a warning.
    """

    text: str
    host: str = ""
    rank: int | None = None
    time: float | None = None
    stream: str = ""
    has_rank_tag: bool = False
    pid: int | None = None
    is_warning: bool = False


@dataclass(slots=True)
class _Prefixes:
    """The values of the prefixes that were read so far."""

    host: str = ""
    rank: int | None = None
    time: float | None = None
    has_rank_tag: bool = False
    pid: int | None = None
    is_warning: bool = False


def parse_line(raw: bytes) -> ParsedLine:
    """Parse a line. Replaces bytes that are not UTF-8, and drops colours."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = text.rstrip()
    prefixes = _Prefixes()
    for _ in range(6):  # prefixes come in any order: pdsh's host, a clock, torch's rank
        end = _read_rank(text, prefixes) or _read_time(text, prefixes) or _read_writer(text, prefixes)
        if not end:
            break
        text = text[end:]
    text = _GROUP.sub("", text, count=1) if text.startswith("  ") else text
    if prefixes.pid is not None:
        text = _RAY_REPEATED.sub("", text)
    rank, host = prefixes.rank, prefixes.host
    is_warning = prefixes.is_warning or text.startswith("[W ")
    if rank is None and (match := _RANK_IN_TEXT.search(text[:200])):
        line_rank: int | None = int(next(group for group in match.groups() if group))
    else:
        line_rank = rank
    stream = f"{host}|{'' if rank is None else rank}|{'' if prefixes.pid is None else prefixes.pid}"
    return ParsedLine(text, host, line_rank, prefixes.time, stream, prefixes.has_rank_tag, prefixes.pid, is_warning)


def _read_rank(text: str, prefixes: _Prefixes) -> int:
    """The end of a prefix that names a rank; 0 for none. So do the next two functions, for a clock and for a host."""
    if text[:1] not in "[ \t":
        return 0
    if match := _TORCH.match(text):
        prefixes.has_rank_tag = True
    elif not (match := _MPI.match(text)):
        return 0
    prefixes.rank = int(match[1])
    return match.end()


def _read_time(text: str, prefixes: _Prefixes) -> int:
    if text[:1] not in "[0123456789EWIF" and text[3:4] != " ":  # which a month or a day has behind three letters
        return 0
    clock = _parse_time(text)
    if clock is None:
        match = _UPTIME.match(text)
        return match.end() if match else 0
    prefixes.time, end = clock
    prefixes.is_warning = prefixes.is_warning or bool(_GLOG_WARNING.match(text))
    if match := _SYSLOG_WRITER.match(text, end):
        prefixes.host, end = match[1], match.end()
    return end


def _read_writer(text: str, prefixes: _Prefixes) -> int:
    if not text[:1].isalnum() and text[:1] not in "([":
        return 0
    if text.startswith("(") and (match := _RAY.match(text)):
        prefixes.pid, prefixes.host = int(match["pid"]), match["ip"] or prefixes.host
    elif (match := _POD.match(text)) or (
        not prefixes.host and (match := _HOST.match(text)) and _is_host_name(match[1], text[match.end() :])
    ):
        prefixes.host = sys.intern(match[1])
    elif prefixes.rank is None and not prefixes.has_rank_tag and (match := _SLURM.match(text)):
        prefixes.rank = int(match[1])
    else:
        return 0
    return match.end()


def _is_host_name(name: str, rest: str) -> bool:
    """`worker-0: ` is a host, `ValueError: ` and `OSError: ` are none."""
    lower = name.lower()
    ends = ("error", "exception", "warning", "interrupt", "exit", "iteration", ".py", ".sh", ".weight", ".bias")
    if lower in _NOT_HOST_NAMES or lower.endswith(ends):
        return False
    if "." in name and not _DOMAIN.search(name):
        return False  # a module's name
    return bool(_HOST_MARK.search(name)) or rest.startswith(("[", "Traceback", "  File "))


def _parse_time(text: str) -> tuple[float, int] | None:
    """(seconds, index of the text). Months count 31 days and years nothing: times are only compared."""
    if (match := _ISO.match(text)) or (match := _GLOG.match(text)):
        _, month, day, *clock = match.groups()
    elif (match := _SYSLOG.match(text)) and match[1] in _MONTHS:
        month, day, *clock = str(_MONTHS[match[1]]), *match.groups()[1:]
    elif match := _CLOCK.match(text):
        month, day, clock = "0", "0", list(match.groups())
    else:
        return None
    hours, minutes, seconds, part = clock
    days = int(month) * 31 + int(day)
    fraction = float(f"0.{part}") if part else 0.0
    return days * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds) + fraction, match.end()
