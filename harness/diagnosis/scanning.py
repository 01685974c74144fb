"""Lines of interest -> events, told apart by who wrote them. Of a thousand equal lines, one a rank is kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.diagnosis.matching import Match, is_exception, match
from harness.diagnosis.prefixes import Said, split
from harness.diagnosis.reading import Line
from harness.diagnosis.values import Event, Frame

MOST_EVENTS = 6000
WITH_FRAMES = 300
MOST_FRAMES = 60
_SEEN = 20_000
_SAME = 4096
"""So many lines that differ in digits alone are looked at: one a rank of a large job."""
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$')
_MULTI = re.compile(
    r"validation errors? for \w+|Error\(s\) in loading state_dict|Error building extension|"
    r"incompatible (?:constructor|function) arguments|Error: $"
)
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_MAPPING = re.compile(r"global_rank_mapping=defaultdict\([^,]*, (\{.*\})\)")
_HOSTED = re.compile(r"'([^']+)': \[([\d, ]*)\]")
_WRAPPED = ("", "LG054", "LG067", "LG072", "LG073")
"""What an outer exception says more of: an unknown one, a file, the network."""
_LOCAL = re.compile(r"--local_rank=(\d+)")
_ROOT = re.compile(r"^\s+(host|rank|time|exitcode)\s+: (\S+)(?: \(local_rank: (\d+)\))?")


@dataclass(slots=True)
class _Stream:
    """What is known of one writer: its open traceback, its clock, the message that is still going on."""

    frames: list[Frame] = field(default_factory=list)
    in_traceback: bool = False
    uncaught: bool = False
    time: float | None = None
    last: Event | None = None
    pending: list[str] = field(default_factory=list)
    first: tuple[Line, Said] | None = None
    chained: bool = False


class Scanner:
    """Collects events. Afterwards `events`, `ranks`, `hosts` (rank -> host), `root` (torchrun's own word on the first
    failure), `counts` and `went_back` (the clock went back: logs that were put one after the other) are known.
    """

    def __init__(self, hosts: Mapping[int, str]) -> None:
        self.events: list[Event] = []
        self.ranks: set[int] = set()
        self.hosts = dict(hosts)
        self.locals: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self.root: dict[str, str] = {}
        self.went_back = False
        self.world = 0
        self.waiting: dict[str, tuple[Line, str]] = {}
        self.finished = 0
        self._streams: dict[str, _Stream] = {}
        self._seen: dict[tuple[bytes, bool], int] = {}
        self._kept: set[tuple[str, str, int | None, str]] = set()
        self._clock: float | None = None
        self._log, self._lines = -1, 0
        self._rank: int | None = None
        self._in_root = 0

    def begin(self, lines: int, rank: int | None) -> None:
        """A log begins, after `lines` lines of others; it is one rank's where `rank` is known."""
        self._log, self._lines, self._rank = self._log + 1, lines, rank
        self._streams, self._clock = {}, None

    def line(self, line: Line) -> None:
        """Look at one line."""
        key = (line.raw.translate(None, b"0123456789"), False)
        if self._seen.get(key, 0) > _SAME and b"Traceback" not in line.raw:
            return
        said = split(line.raw)
        stream = self._streams.get(said.stream)
        if stream is None:
            stream = self._streams[said.stream] = _Stream()
            if len(self._streams) > 8192:
                self._streams.clear()
                self._streams[said.stream] = stream
        self._note(said, stream)
        self._take(line, said, stream)
        if len(self._seen) < _SEEN and not stream.in_traceback:
            self._seen[key] = self._seen.get(key, 0) + 1

    def end(self) -> None:
        """Nothing more comes from this log."""
        for stream in self._streams.values():
            self._close(stream)

    def _note(self, said: Said, stream: _Stream) -> None:
        """Clocks, ranks and hosts."""
        if said.time is not None:
            if self._clock is not None and said.time < self._clock - 60:
                self.went_back = True
            self._clock = stream.time = said.time
        if said.rank is not None and said.rank < 1 << 16:
            self.ranks.add(said.rank)
            if said.host and said.tagged:
                self.hosts.setdefault(said.rank, said.host)
        if "global_rank_mapping" in said.text and (found := _MAPPING.search(said.text)):
            for host, numbers in _HOSTED.findall(found[1]):
                ranks = [int(n) for n in numbers.split(",") if n.strip()]
                self.locals[host] = ranks
                self.world = max([self.world, *(rank + 1 for rank in ranks)])
                self.hosts.update({} if host == "localhost" else dict.fromkeys(ranks, host))
        if "exits successfully" in said.text:
            self.finished += 1
        if "PyTorch extensions root" in said.text:
            self.waiting[said.stream] = (Line(0, b"", 0), said.text)
        elif "Loading extension module" in said.text or "Time to load" in said.text:
            self.waiting.clear()

    def _take(self, line: Line, said: Said, stream: _Stream) -> None:
        """Tracebacks, messages of several lines, and what is left: a line that may tell of a failure."""
        text = said.text
        if text.startswith(("Traceback (most recent call last)", "Error executing job")):
            self._close(stream)
            stream.frames, stream.in_traceback, stream.uncaught = [], True, said.tagged
        elif found := _FRAME.match(text):
            if len(stream.frames) >= MOST_FRAMES:
                del stream.frames[MOST_FRAMES // 2]
            stream.frames.append(Frame(found[1], int(found[2]), found[3] or ""))
        elif _CHAINED.match(text):
            self._close(stream)
            stream.chained = True
        elif not self._root_cause(text) and not self._goes_on(text, stream):
            if _MULTI.search(text):
                stream.first, stream.pending = (line, said), [text]
            elif not stream.in_traceback or (text and text[0] not in " \t^~"):
                self._event(line, said, stream, text)

    def _goes_on(self, text: str, stream: _Stream) -> bool:
        """Does the line belong to the message above it?"""
        if stream.first is None:
            return False
        if len(stream.pending) < 14 and text and not self._begins(text):
            stream.pending.append(text.strip())
            return True
        self._close(stream)
        return False

    def _begins(self, text: str) -> bool:
        """Does the line belong to no message above it?"""
        return (
            text.startswith(("[", "Traceback", "E1", "W1")) or bool(_CHAINED.match(text)) or bool(_MULTI.search(text))
        )

    def _close(self, stream: _Stream) -> None:
        """The message that went on over several lines is complete."""
        if stream.first is None:
            return
        (line, said), parts = stream.first, stream.pending
        stream.first, stream.pending = None, []
        self._event(line, said, stream, " | ".join(parts))

    def _root_cause(self, text: str) -> bool:
        """torchrun's block on the first failure that it saw."""
        if text.startswith("Root Cause (first observed failure)"):
            self._in_root = 10
            return True
        if self._in_root:
            self._in_root -= 1
            if found := _ROOT.match(text):
                self.root.setdefault(found[1], found[2])
                return True
        return False

    def _event(self, line: Line, said: Said, stream: _Stream, text: str) -> None:
        in_traceback, frames = stream.in_traceback, tuple(stream.frames)
        found = match(text, frames if in_traceback else (), in_traceback=in_traceback)
        if found is None:
            if in_traceback and text and not said.text.startswith(" "):
                stream.in_traceback = False
            return
        chained, stream.chained = stream.chained, False
        event = self._made(line, said, stream, found, text)
        stream.in_traceback, stream.frames = False, []
        self.counts[found.cause or "unknown"] += 1
        if chained and stream.last is not None and stream.last.cause in _WRAPPED and found.cause:
            self.events = [e for e in self.events if e is not stream.last]  # the outer exception says more
        stream.last = event
        more = ",".join(sorted(found.details)) if found.cause else text[:80]
        kept = (found.cause, event.host, event.rank, more)
        if kept in self._kept or len(self.events) >= MOST_EVENTS:
            return
        self._kept.add(kept)
        self.events.append(event)

    def _made(self, line: Line, said: Said, stream: _Stream, found: Match, text: str) -> Event:
        rank, host = said.rank if said.rank is not None else self._rank, said.host
        local = found.details.get("local") or (m[1] if (m := _LOCAL.search(text)) else None)
        if "rank" in found.details:
            rank = int(found.details["rank"])
        elif rank is None and local is not None:
            rank = self._global(host, int(local))
        if rank is not None and rank < 1 << 16:
            self.ranks.add(rank)
        if not host and rank is not None:
            host = self.hosts.get(rank, "")
        return Event(
            order=self._lines + line.number,
            log=self._log,
            text=text,
            cause=found.cause,
            level=found.level,
            sure=found.sure and (said.tagged or bool(stream.frames) or not is_exception(text)),
            host=host,
            rank=rank,
            time=said.time if said.time is not None else stream.time,
            own_time=said.time is not None,
            progress=line.progress,
            frames=tuple(stream.frames) if stream.in_traceback and len(self.events) < WITH_FRAMES else (),
            uncaught=stream.uncaught and stream.in_traceback,
            details=found.details,
        )

    def _global(self, host: str, local: int) -> int | None:
        """The rank of a local one, by the launcher's own table; without one, of a single host."""
        ranks = self.locals.get(host) or (next(iter(self.locals.values())) if len(self.locals) == 1 else None)
        if ranks is None:
            return local if not host and not self.locals else None
        return ranks[local] if local < len(ranks) else None
