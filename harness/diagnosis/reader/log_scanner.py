# SPDX-License-Identifier: Apache-2.0
"""Lines -> events, by writer. Of a thousand equal lines, one a rank becomes an event."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from harness.diagnosis.diagnosis_types import Frame, LogEvent, PhaseMark
from harness.diagnosis.evidence.stack_traces import StackPlace, StackTraces
from harness.diagnosis.reader.learnt_prefix import PrefixLearner
from harness.diagnosis.reader.line_prefix import ParsedLine, parse_line
from harness.diagnosis.reader.log_files import LogOrigin
from harness.diagnosis.reader.log_reader import LogLine
from harness.diagnosis.reader.log_stream import ELISION, WRAPPED_CAUSES, LogStream, replaces_inner, update_event
from harness.diagnosis.rules.exception_names import restore_exception
from harness.diagnosis.rules.line_matcher import Match, is_exception_line, match_cut, match_line

MAX_EVENTS = 20_000
"""One a rank of a large job, whose missing rank is the one without an event."""
MAX_EVENTS_WITH_TEXT = 1000
"""Later ones are only counted: nobody reads their text."""
MAX_EVENTS_WITH_FRAMES = 300
_FRAME = re.compile(r'^(\s*)File "([^"]+)", line (\d+)(?:, in (.+))?$')
_MULTI_LINE_START = re.compile(
    r"validation errors? for \w+|Error\(s\) in loading state_dict|Error building extension|"
    r"Weights only load failed|values that mismatch(?: \w+ +values:|$)|"
    r"incompatible (?:constructor|function) arguments|Error: ?$|NCCL error in: |"
    r"LOAD REPORT from|have different metadata than|following adapter|because of the following error"
)
_INTERRUPTION = re.compile(
    r"\d%\|.{0,200}\| {0,9}\d{1,9}/|it/s[,\]]|s/it[,\]]|^\[?(?:INFO|DEBUG|WARNING)\b|^\{'loss'|NCCL INFO"
)
"""Lines that other threads or ranks write in the middle of a traceback."""
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_RANK_MAPPING = re.compile(r"global_rank_mapping=defaultdict\([^,]*, (\{.*\})\)")
_HOST_RANKS = re.compile(r"'([^']+)': \[([\d, ]*)\]")
_TRACEBACK_STARTS = ("Traceback (most recent", "Original Traceback (most", "Error executing job", "Exception Group Tr")
_CAUGHT = re.compile(r"^[\w.]+: Caught \w+ in ")
"""The exception of a data loader's worker, or of a replica, as its parent raises it again."""
_MAX_CODE, _SHORT_TEXT, _SAYS_NO_MORE = 200, 60, "For further information visit"
_LOCAL_RANK = re.compile(r"--local[_-]rank=(\d+)")
_SPAWNED = re.compile(r"[Pp]rocess (?P<pid>\d+) spawned with command: .*--local[_-]rank=(?P<local>\d+)")
_TORCHRUN_PID = re.compile(
    r"local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)|exitcode  : -?\d+ \(pid: (?P<root_pid>\d+)\)"
)
_MAX_PIDS = 1 << 16
_ROOT_CAUSE_FIELD = re.compile(r"^\s+(host|rank|time|exitcode)\s+: (\S+)(?: \(local_rank: (\d+)\))?")
_RESTART = re.compile(
    r"(?<!\d)(?P<left>\d{1,6})/(?P<all>\d{1,6}) attempts left; *will restart|^\s*restart_count=(?P<count>\d{1,6})|"
    r"restarting in .{0,80}, (?P<ours>\d{1,6}) left$"
)


class LogScanner:
    """Collects events. Afterwards `events`, `ranks`, `hosts` (rank -> host), `torchrun_root_cause` (torchrun's summary
    of the first failure) and `clock_went_back` (several logs follow each other in one) are complete.
    """

    def __init__(self, hosts: Mapping[int, str]) -> None:
        self.events: list[LogEvent] = []
        self.ranks: set[int] = set()
        self.hosts = dict(hosts)
        self.ranks_by_host: dict[str, list[int]] = {}
        self._root_causes: list[dict[str, str]] = []
        self.clock_went_back = False
        self.world_size = 0
        self.num_clean_exits = 0
        self._streams: dict[str, LogStream] = {}
        self._events_by_key: dict[int, LogEvent] = {}
        self._known_hosts: set[str] = set()
        self._clock: float | None = None
        self._log_index, self._lines_before = -1, 0
        self._origin, self._prefixes = LogOrigin(), PrefixLearner()
        self._open: tuple[LogStream, LogLine, ParsedLine] | None = None
        self._root_cause_lines_left, self._is_in_failures = 0, False
        self.stacks = StackTraces()
        self.ranks_by_pid: dict[tuple[str, int], int] = {}
        self._attempts = AttemptCounter()
        self.is_incomplete = False
        """Some failures were left out, so that nothing follows from a rank without one."""

    @property
    def torchrun_root_cause(self) -> dict[str, str]:
        """The fields of torchrun's table: of the agent that saw a failure first, where those of several nodes wrote."""
        causes = [cause for cause in self._root_causes if cause]
        return min(causes, key=lambda cause: cause.get("time", "~")) if causes else {}

    @property
    def attempt(self) -> int:
        """The last attempt of the job, from 0."""
        return self._attempts.last

    def start_log(self, lines: int, origin: LogOrigin) -> None:
        """A log starts, after `lines` lines of other logs. `origin`: who wrote it, by its name."""
        self._log_index, self._lines_before, self._origin = self._log_index + 1, lines, origin
        self._streams, self._clock, self._open, self._prefixes = {}, None, None, PrefixLearner()
        self._root_cause_lines_left, self._is_in_failures = 0, False
        self._attempts.start_log(origin.attempt)
        self.stacks.start_log()

    def scan_line(self, line: LogLine) -> None:
        """Scan one line."""
        parsed_line = self._parse(line)
        stream = self._streams.get(parsed_line.stream)
        if stream is None:
            stream = self._streams[parsed_line.stream] = LogStream()
            if len(self._streams) > 8192:
                self._streams.clear()
                self._streams[parsed_line.stream] = stream
        if elision := ELISION.match(parsed_line.text):
            parsed_line = parsed_line._replace(text=parsed_line.text[elision.end() :])
            if self._open is not None:
                self._open[0].is_elided, self._open = True, (self._open[0], line, self._open[2])
                if not parsed_line.text:
                    return
        self._update_ranks_and_hosts(parsed_line, stream)
        self._attempts.read_line(parsed_line)
        if self._ends_open_traceback(line, parsed_line, stream) and self._open is not None:
            stream, parsed_line = self._open[0], parsed_line._replace(rank=self._open[2].rank, host=self._open[2].host)
        stream.note_line(line, parsed_line)
        self._open = (stream, line, parsed_line) if stream.in_traceback else None
        place = StackPlace(self._lines_before + line.number, self._log_index, line.progress)
        if stream.in_traceback or not self.stacks.read_line(
            parsed_line.text, parsed_line.stream, parsed_line.rank, parsed_line.host, place
        ):
            self._process_line(line, parsed_line, stream)

    def _ends_open_traceback(self, line: LogLine, parsed_line: ParsedLine, stream: LogStream) -> bool:
        """Does an exception without a prefix end the traceback of the line above, whose rank has one?"""
        if self._open is None or parsed_line.rank is not None or stream.in_traceback:
            return False
        return line.number == self._open[1].number + 1 and is_exception_line(parsed_line.text)

    def _parse(self, line: LogLine) -> ParsedLine:
        """The line, with the rank and host of the log where it names none itself."""
        parsed_line, origin = self._prefixes.strip(parse_line(line.raw)), self._origin
        if parsed_line.host and len(self._known_hosts) < _MAX_PIDS:
            self._known_hosts.add(parsed_line.host)
        elif (name := parsed_line.text.partition(": ")[0]) in self._known_hosts:  # `alpha: ` alone may be no host
            text = parsed_line.text[len(name) + 2 :]
            parsed_line = parsed_line._replace(host=name, text=text, stream=name + parsed_line.stream)
        host = parsed_line.host or origin.host
        rank = parsed_line.rank if parsed_line.rank is not None else origin.rank
        if rank is None and origin.local_rank is not None:
            rank = self.global_rank_of(host, origin.local_rank)
        if host == parsed_line.host and rank == parsed_line.rank:
            return parsed_line
        return parsed_line._replace(host=host, rank=rank)

    def finish_log(self, num_lines: int = 0) -> None:
        """The log has ended, after so many lines."""
        for stream in self._streams.values():
            self._finish_message(stream)
            last = stream.find_cut(num_lines, self._lines_before, self.events)
            if last is not None and len(self.events) < MAX_EVENTS:
                self.events.append(self._make_event(*last, stream, *match_cut(stream.frames)))

    def drop_log(self) -> None:
        """The log that has ended is no text: forget its events."""
        self.events = [event for event in self.events if event.log_index != self._log_index]
        self._events_by_key = {key: e for key, e in self._events_by_key.items() if e.log_index != self._log_index}

    def _update_ranks_and_hosts(self, parsed_line: ParsedLine, stream: LogStream) -> None:
        """Update the clock, the ranks and their hosts."""
        if parsed_line.time is not None:
            if self._clock is not None and parsed_line.time < self._clock - 60:
                self.clock_went_back = True
            self._clock = stream.time = parsed_line.time
        if parsed_line.rank is not None and parsed_line.rank < 1 << 16:
            self.ranks.add(parsed_line.rank)
            if parsed_line.host and parsed_line.has_rank_tag:
                self.hosts.setdefault(parsed_line.rank, parsed_line.host)
        if "global_rank_mapping" in parsed_line.text and (match := _RANK_MAPPING.search(parsed_line.text)):
            self._read_rank_mapping(match[1])
        if "pid" in parsed_line.text or "spawned" in parsed_line.text:
            self._update_pids(parsed_line)
        if "exits successfully" in parsed_line.text:
            self.num_clean_exits += 1

    def _read_rank_mapping(self, text: str) -> None:
        """Read DeepSpeed's table of hosts and ranks."""
        for host, numbers in _HOST_RANKS.findall(text):
            ranks = [int(number) for number in re.findall(r"\b\d{1,5}\b", numbers)]
            self.ranks_by_host[host] = ranks
            self.world_size = max([self.world_size, *(rank + 1 for rank in ranks)])
            self.hosts.update({} if host == "localhost" else dict.fromkeys(ranks, host))

    def _update_pids(self, parsed_line: ParsedLine) -> None:
        """Learn the process of a rank from what its launcher says."""
        match = _SPAWNED.search(parsed_line.text) or _TORCHRUN_PID.search(parsed_line.text)
        if match is None or len(self.ranks_by_pid) >= _MAX_PIDS:
            return
        groups = match.groupdict()
        if groups.get("root_pid"):
            rank_text = self._root_causes[-1].get("rank", "") if self._root_causes else ""
            pid, rank = int(groups["root_pid"]), int(rank_text) if rank_text.isdecimal() else None
        else:
            pid, rank = int(groups["pid"]), self.global_rank_of(parsed_line.host, int(groups["local"]))
        if rank is not None:
            self.ranks_by_pid[parsed_line.host, pid] = rank

    def rank_of_pid(self, host: str, pid: int) -> int | None:
        """The rank of a process; by its number alone where the host is unknown and no other rank has it."""
        if (host, pid) in self.ranks_by_pid:
            return self.ranks_by_pid[host, pid]
        ranks = {rank for (name, number), rank in self.ranks_by_pid.items() if number == pid and not (name and host)}
        return ranks.pop() if len(ranks) == 1 else None

    def _process_line(self, line: LogLine, parsed_line: ParsedLine, stream: LogStream) -> None:
        """Collect tracebacks and messages of several lines. Any other line may be an event."""
        text = parsed_line.text
        if text.lstrip().startswith(_TRACEBACK_STARTS):
            self._finish_message(stream)
            if "Original" in text and stream.last_event is not None and _CAUGHT.search(stream.last_event.text):
                self._remove_event(stream.last_event, stream.last_key)  # the exception itself follows
            stream.open_traceback()
            stream.is_uncaught = parsed_line.has_rank_tag
        elif match := _FRAME.match(text):
            self._finish_message(stream, is_over=stream.is_by_hand)
            stream.add_frame(Frame(match[2], int(match[3]), match[4] or ""), len(match[1]))
        elif _CHAINED.match(text):
            self._finish_message(stream)
            stream.is_chained = True
        elif stream.read_box(text) or stream.read_cell(text) or (stream.in_traceback and _INTERRUPTION.search(text)):
            return
        elif not self._read_root_cause(text) and not self._continues_message(text, stream):
            width = 0 if _MULTI_LINE_START.search(text) else stream.wraps_at(line, text)
            if width is not None:
                stream.start_message(line, parsed_line, width)
            elif not stream.in_traceback or stream.is_left_of_frames(text):
                self._add_event(line, parsed_line, stream, text.strip() if stream.in_traceback else text)
            elif stream.frames and not stream.frames[-1].code:
                stream.frames[-1] = replace(stream.frames[-1], code=text.strip()[:_MAX_CODE])

    def _continues_message(self, text: str, stream: LogStream) -> bool:
        """Does the line belong to the message above it?"""
        if stream.message_start is None:
            return False
        is_open = stream.message_lines[-1].endswith(":")
        if stream.is_by_hand and stream.is_wrapped(text) and _MULTI_LINE_START.search(text):
            stream.message_lines, stream.wrap_width = [" ".join([*stream.message_lines, text])], 0
            return True
        continues = text.startswith("Failed to import") or not self._starts_message(text)
        if len(stream.message_lines) < 24 and (text or is_open) and continues and stream.is_wrapped(text):
            stream.message_lines += [text.strip()] if text and _SAYS_NO_MORE not in text else []
            return True
        self._finish_message(stream)
        return False

    def _starts_message(self, text: str) -> bool:
        """Does the line start a message of its own?"""
        return (
            text.startswith(("[", "Traceback", "ERROR:", "WARNING:", "INFO:"))
            or bool(_CHAINED.match(text))
            or bool(_MULTI_LINE_START.search(text))
            or is_exception_line(text)
        )

    def _finish_message(self, stream: LogStream, *, is_over: bool = True) -> None:
        """Add the event of a message of several lines, if it is over."""
        if is_over and stream.message_start is not None:
            self._add_event(*stream.message_start, stream, stream.take_message())

    def _read_root_cause(self, text: str) -> bool:
        """Read torchrun's summary of the first failure. Is the line a part of it?"""
        if text.startswith("Root Cause (first observed failure)"):
            self._root_cause_lines_left, self._is_in_failures = 10, False
            if len(self._root_causes) < MAX_EVENTS:
                self._root_causes.append({})
            return True
        if text.startswith("Failures:"):
            self._is_in_failures = True
        if self._is_in_failures and "Signal 15 (SIGTERM)" in text:
            return True  # the agent ended this one, because another had failed
        if self._root_cause_lines_left:
            self._root_cause_lines_left -= 1
            if match := _ROOT_CAUSE_FIELD.match(text):
                self._root_causes[-1].setdefault(match[1], match[2])
                return True
        return False

    def _add_event(self, line: LogLine, parsed_line: ParsedLine, stream: LogStream, text: str) -> None:
        in_traceback, frames = stream.in_traceback, tuple(stream.frames)
        last = stream.last_event
        text = restore_exception(text, last.text if last is not None else "")
        if last is not None and text == f"{last.text}{parsed_line.text}":  # its message, after lines of other ranks
            self._remove_event(last, stream.last_key)
        match = match_line(text, frames if in_traceback else (), in_traceback=in_traceback)
        if match is None:
            if in_traceback and text:
                stream.in_traceback = False
            if not in_traceback or not stream.is_elided or not text:
                return
            match = Match("", "root", False, {})
        if parsed_line.is_warning and match.level == "root":  # such as a socket that is tried again
            match = match._replace(level="echo", sure=False)
        is_chained, stream.is_chained = stream.is_chained, False
        is_ignored, stream.is_ignored = stream.is_ignored, False
        if is_ignored and in_traceback and match.cause in WRAPPED_CAUSES:
            stream.in_traceback, stream.frames = False, []
            return
        event = self._make_event(line, parsed_line, stream, match, text)
        stream.in_traceback, stream.frames = False, []
        if is_chained and stream.last_event is not None and replaces_inner(event, stream.last_event):
            self._remove_event(stream.last_event, stream.last_key)
        detail_key = ",".join(sorted(match.details)) if match.cause else text[:80]
        event_key = hash((match.cause, event.host, event.rank, event.attempt, detail_key))
        stream.last_event, stream.last_key = event, event_key
        if (known := self._events_by_key.get(event_key)) is not None:
            update_event(known, event)
            return
        if len(self.events) >= MAX_EVENTS:
            self.is_incomplete = True
            return
        self._events_by_key[event_key] = event
        self.events.append(event)

    def _remove_event(self, event: LogEvent, key: int) -> None:
        """Forget an event, most often the last one, so that an equal one may come."""
        if self._events_by_key.get(key) is event:
            del self._events_by_key[key]
            del self.events[next(i for i in range(len(self.events) - 1, -1, -1) if self.events[i] is event)]

    def _make_event(
        self, line: LogLine, parsed_line: ParsedLine, stream: LogStream, match: Match, text: str
    ) -> LogEvent:
        rank, host = parsed_line.rank, parsed_line.host or match.details.get("host", "")
        local = match.details.get("local") or (m[1] if (m := _LOCAL_RANK.search(text)) else None)
        if "rank" in match.details:
            rank = int(match.details["rank"])
        elif rank is None and local is not None:
            rank = self.global_rank_of(host, int(local))
        if rank is not None and rank < 1 << 16:
            self.ranks.add(rank)
        if not host and rank is not None:
            host = self.hosts.get(rank, "")
        return LogEvent(
            line_number=self._lines_before + line.number,
            log_index=self._log_index,
            attempt=self._attempts.current,
            text=text if len(self.events) < MAX_EVENTS_WITH_TEXT else text[:_SHORT_TEXT],
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
            title=match.title,
            change=match.change,
            pattern=match.pattern,
            proves_change=match.proves_change,
            phase=line.phases.mark_of(rank) if line.phases is not None else PhaseMark(),
            num_ends=line.phases.num_ends if line.phases is not None else 0,
            num_retries=line.phases.num_retries if line.phases is not None else 0,
        )

    def global_rank_of(self, host: str, local: int) -> int | None:
        """The rank of a local rank, by the launcher's table; without a table, on a single host."""
        ranks = self.ranks_by_host.get(host) or (
            next(iter(self.ranks_by_host.values())) if len(self.ranks_by_host) == 1 else None
        )
        if ranks is None:
            return local if not host and not self.ranks_by_host else None
        return ranks[local] if local < len(ranks) else None


class AttemptCounter:
    """`current` is the attempt of the line that was read, from 0; `last` the highest of all logs."""

    def __init__(self) -> None:
        self.current = self.last = 0
        self._mapped_hosts: set[str] = set()

    def start_log(self, attempt: int) -> None:
        """Another log starts, which is of this attempt by its name."""
        self.current, self._mapped_hosts = attempt, set()
        self.last = max(self.last, attempt)

    def read_line(self, parsed_line: ParsedLine) -> None:
        """Does the launcher say that it starts the ranks again? A host's second table of ranks says so too."""
        text, attempt = parsed_line.text, self.current
        if "global_rank_mapping" in text:
            attempt += parsed_line.host in self._mapped_hosts
            self._mapped_hosts = (self._mapped_hosts if attempt == self.current else set()) | {parsed_line.host}
        elif "estart" in text and (match := _RESTART.search(text)):
            if match["count"]:
                attempt = max(attempt, int(match["count"]))
            elif match["all"]:
                attempt = max(attempt, int(match["all"]) - int(match["left"]) + 1)
            else:
                attempt += 1
        self.current = attempt
        self.last = max(self.last, attempt)
