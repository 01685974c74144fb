# SPDX-License-Identifier: Apache-2.0
"""Lines -> events, by writer. Of a thousand equal lines, one a rank becomes an event."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.diagnosis.diagnosis_types import Frame, LogEvent
from harness.diagnosis.line_matcher import Match, is_exception_line, match_line
from harness.diagnosis.line_prefix import ParsedLine, parse_line
from harness.diagnosis.log_reader import LogLine

MAX_EVENTS = 6000
MAX_EVENTS_WITH_FRAMES = 300
MAX_FRAMES = 60
_MAX_DISTINCT_LINES = 20_000
_MAX_EQUAL_LINES = 4096
"""Lines that are read when they differ in digits alone: one a rank of a large job."""
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$')
_MULTI_LINE_START = re.compile(
    r"validation errors? for \w+|Error\(s\) in loading state_dict|Error building extension|"
    r"incompatible (?:constructor|function) arguments|Error: $"
)
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_RANK_MAPPING = re.compile(r"global_rank_mapping=defaultdict\([^,]*, (\{.*\})\)")
_HOST_RANKS = re.compile(r"'([^']+)': \[([\d, ]*)\]")
_MAX_CODE = 200
_WRAPPED_CAUSES = ("", "LG054", "LG067", "LG072", "LG073")
"""Causes that an outer exception replaces: an unknown one, a file, the network."""
_LOCAL_RANK = re.compile(r"--local_rank=(\d+)")
_ROOT_CAUSE_FIELD = re.compile(r"^\s+(host|rank|time|exitcode)\s+: (\S+)(?: \(local_rank: (\d+)\))?")


@dataclass(slots=True)
class _LogStream:
    """The state of one writer: its open traceback, its clock, its message of several lines."""

    frames: list[Frame] = field(default_factory=list)
    in_traceback: bool = False
    is_uncaught: bool = False
    time: float | None = None
    last_event: LogEvent | None = None
    message_lines: list[str] = field(default_factory=list)
    message_start: tuple[LogLine, ParsedLine] | None = None
    is_chained: bool = False


class LogScanner:
    """Collects events. Afterwards `events`, `ranks`, `hosts` (rank -> host), `torchrun_root_cause` (torchrun's summary
    of the first failure), `counts` and `clock_went_back` (several logs follow each other in one) are complete.
    """

    def __init__(self, hosts: Mapping[int, str]) -> None:
        self.events: list[LogEvent] = []
        self.ranks: set[int] = set()
        self.hosts = dict(hosts)
        self.ranks_by_host: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self.torchrun_root_cause: dict[str, str] = {}
        self.clock_went_back = False
        self.world_size = 0
        self.op_loads: dict[str, tuple[LogLine, str]] = {}
        self.num_clean_exits = 0
        self._streams: dict[str, _LogStream] = {}
        self._line_counts: dict[tuple[bytes, bool], int] = {}
        self._event_keys: set[tuple[str, str, int | None, str]] = set()
        self._clock: float | None = None
        self._log_index, self._lines_before = -1, 0
        self._rank_of_log: int | None = None
        self._root_cause_lines_left = 0

    def start_log(self, lines: int, rank: int | None) -> None:
        """A log starts, after `lines` lines of other logs. `rank`: the rank that wrote it, if one did."""
        self._log_index, self._lines_before, self._rank_of_log = self._log_index + 1, lines, rank
        self._streams, self._clock = {}, None

    def scan_line(self, line: LogLine) -> None:
        """Scan one line."""
        key = (line.raw.translate(None, b"0123456789"), False)
        if self._line_counts.get(key, 0) > _MAX_EQUAL_LINES and b"Traceback" not in line.raw:
            return
        parsed_line = parse_line(line.raw)
        stream = self._streams.get(parsed_line.stream)
        if stream is None:
            stream = self._streams[parsed_line.stream] = _LogStream()
            if len(self._streams) > 8192:
                self._streams.clear()
                self._streams[parsed_line.stream] = stream
        self._update_ranks_and_hosts(parsed_line, stream)
        self._process_line(line, parsed_line, stream)
        if len(self._line_counts) < _MAX_DISTINCT_LINES and not stream.in_traceback:
            self._line_counts[key] = self._line_counts.get(key, 0) + 1

    def finish_log(self) -> None:
        """The log has ended."""
        for stream in self._streams.values():
            self._finish_message(stream)

    def _update_ranks_and_hosts(self, parsed_line: ParsedLine, stream: _LogStream) -> None:
        """Update the clock, the ranks, their hosts, and the loads of ops."""
        if parsed_line.time is not None:
            if self._clock is not None and parsed_line.time < self._clock - 60:
                self.clock_went_back = True
            self._clock = stream.time = parsed_line.time
        if parsed_line.rank is not None and parsed_line.rank < 1 << 16:
            self.ranks.add(parsed_line.rank)
            if parsed_line.host and parsed_line.has_rank_tag:
                self.hosts.setdefault(parsed_line.rank, parsed_line.host)
        if "global_rank_mapping" in parsed_line.text and (match := _RANK_MAPPING.search(parsed_line.text)):
            for host, numbers in _HOST_RANKS.findall(match[1]):
                ranks = [int(n) for n in numbers.split(",") if n.strip()]
                self.ranks_by_host[host] = ranks
                self.world_size = max([self.world_size, *(rank + 1 for rank in ranks)])
                self.hosts.update({} if host == "localhost" else dict.fromkeys(ranks, host))
        if "exits successfully" in parsed_line.text:
            self.num_clean_exits += 1
        if "PyTorch extensions root" in parsed_line.text:
            self.op_loads[parsed_line.stream] = (LogLine(0, b"", 0), parsed_line.text)
        elif "Loading extension module" in parsed_line.text or "Time to load" in parsed_line.text:
            self.op_loads.clear()

    def _process_line(self, line: LogLine, parsed_line: ParsedLine, stream: _LogStream) -> None:
        """Collect tracebacks and messages of several lines. Any other line may be an event."""
        text = parsed_line.text
        if text.startswith(("Traceback (most recent call last)", "Error executing job")):
            self._finish_message(stream)
            stream.frames, stream.in_traceback, stream.is_uncaught = [], True, parsed_line.has_rank_tag
        elif match := _FRAME.match(text):
            if len(stream.frames) >= MAX_FRAMES:
                del stream.frames[MAX_FRAMES // 2]
            stream.frames.append(Frame(match[1], int(match[2]), match[3] or ""))
        elif _CHAINED.match(text):
            self._finish_message(stream)
            stream.is_chained = True
        elif not self._read_root_cause(text) and not self._continues_message(text, stream):
            if _MULTI_LINE_START.search(text):
                stream.message_start, stream.message_lines = (line, parsed_line), [text]
            elif not stream.in_traceback or (text and text[0] not in " \t^~"):
                self._add_event(line, parsed_line, stream, text)
            elif stream.frames and not stream.frames[-1].code:
                stream.frames[-1] = replace(stream.frames[-1], code=text.strip()[:_MAX_CODE])

    def _continues_message(self, text: str, stream: _LogStream) -> bool:
        """Does the line belong to the message above it?"""
        if stream.message_start is None:
            return False
        if len(stream.message_lines) < 14 and text and not self._starts_message(text):
            stream.message_lines.append(text.strip())
            return True
        self._finish_message(stream)
        return False

    def _starts_message(self, text: str) -> bool:
        """Does the line start a message of its own?"""
        return (
            text.startswith(("[", "Traceback", "E1", "W1"))
            or bool(_CHAINED.match(text))
            or bool(_MULTI_LINE_START.search(text))
        )

    def _finish_message(self, stream: _LogStream) -> None:
        """Add the event of a message of several lines."""
        if stream.message_start is None:
            return
        (line, parsed_line), parts = stream.message_start, stream.message_lines
        stream.message_start, stream.message_lines = None, []
        self._add_event(line, parsed_line, stream, " | ".join(parts))

    def _read_root_cause(self, text: str) -> bool:
        """Read torchrun's summary of the first failure. Is the line a part of it?"""
        if text.startswith("Root Cause (first observed failure)"):
            self._root_cause_lines_left = 10
            return True
        if self._root_cause_lines_left:
            self._root_cause_lines_left -= 1
            if match := _ROOT_CAUSE_FIELD.match(text):
                self.torchrun_root_cause.setdefault(match[1], match[2])
                return True
        return False

    def _add_event(self, line: LogLine, parsed_line: ParsedLine, stream: _LogStream, text: str) -> None:
        in_traceback, frames = stream.in_traceback, tuple(stream.frames)
        match = match_line(text, frames if in_traceback else (), in_traceback=in_traceback)
        if match is None:
            if in_traceback and text and not parsed_line.text.startswith(" "):
                stream.in_traceback = False
            return
        is_chained, stream.is_chained = stream.is_chained, False
        event = self._make_event(line, parsed_line, stream, match, text)
        stream.in_traceback, stream.frames = False, []
        self.counts[match.cause or "unknown"] += 1
        if is_chained and stream.last_event is not None and stream.last_event.cause in _WRAPPED_CAUSES and match.cause:
            self.events = [e for e in self.events if e is not stream.last_event]  # the outer exception says more
        stream.last_event = event
        detail_key = ",".join(sorted(match.details)) if match.cause else text[:80]
        event_key = (match.cause, event.host, event.rank, detail_key)
        if event_key in self._event_keys or len(self.events) >= MAX_EVENTS:
            return
        self._event_keys.add(event_key)
        self.events.append(event)

    def _make_event(
        self, line: LogLine, parsed_line: ParsedLine, stream: _LogStream, match: Match, text: str
    ) -> LogEvent:
        rank, host = parsed_line.rank if parsed_line.rank is not None else self._rank_of_log, parsed_line.host
        local = match.details.get("local") or (m[1] if (m := _LOCAL_RANK.search(text)) else None)
        if "rank" in match.details:
            rank = int(match.details["rank"])
        elif rank is None and local is not None:
            rank = self._global_rank_of(host, int(local))
        if rank is not None and rank < 1 << 16:
            self.ranks.add(rank)
        if not host and rank is not None:
            host = self.hosts.get(rank, "")
        return LogEvent(
            line_number=self._lines_before + line.number,
            log_index=self._log_index,
            text=text,
            cause=match.cause,
            level=match.level,
            sure=match.sure and (parsed_line.has_rank_tag or bool(stream.frames) or not is_exception_line(text)),
            host=host,
            rank=rank,
            time=parsed_line.time if parsed_line.time is not None else stream.time,
            has_own_time=parsed_line.time is not None,
            progress=line.progress,
            frames=tuple(stream.frames) if stream.in_traceback and len(self.events) < MAX_EVENTS_WITH_FRAMES else (),
            is_uncaught=stream.is_uncaught and stream.in_traceback,
            details=match.details,
        )

    def _global_rank_of(self, host: str, local: int) -> int | None:
        """The rank of a local rank, by the launcher's table; without a table, on a single host."""
        ranks = self.ranks_by_host.get(host) or (
            next(iter(self.ranks_by_host.values())) if len(self.ranks_by_host) == 1 else None
        )
        if ranks is None:
            return local if not host and not self.ranks_by_host else None
        return ranks[local] if local < len(ranks) else None
