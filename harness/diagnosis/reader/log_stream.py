# SPDX-License-Identifier: Apache-2.0
"""The state of one writer of a log: its traceback, its message of several lines, its clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.diagnosis.diagnosis_types import Frame, LogEvent
from harness.diagnosis.reader.line_prefix import ParsedLine
from harness.diagnosis.reader.log_reader import LogLine

MAX_FRAMES = 60
_LINES_OF_CUT = 8
"""A traceback that is still open so few lines before the end of its log was cut."""
_PROGRESS_OF_ANOTHER = 4
"""After so many signs of progress, an equal line is another failure."""


@dataclass(slots=True)
class LogStream:
    """The state of one writer: its open traceback, its clock, its message of several lines."""

    frames: list[Frame] = field(default_factory=list)
    in_traceback: bool = False
    is_uncaught: bool = False
    time: float | None = None
    last_event: LogEvent | None = None
    last_key: int = 0
    message_lines: list[str] = field(default_factory=list)
    message_start: tuple[LogLine, ParsedLine] | None = None
    is_chained: bool = False
    last_line: tuple[LogLine, ParsedLine] | None = None
    """Of the open traceback."""
    is_ignored: bool = False
    """Python prints an exception that it ignores."""

    def note_line(self, line: LogLine, parsed_line: ParsedLine) -> None:
        """Remember the last line of a traceback, and whether Python ignores the exception that follows."""
        if self.in_traceback or parsed_line.text.startswith("Traceback"):
            self.last_line = line, parsed_line
        elif parsed_line.text.startswith("Exception ignored in"):
            self.is_ignored = True

    def find_cut(self, num_lines: int) -> tuple[LogLine, ParsedLine] | None:
        """The last line of a traceback in which the log, of so many lines, ends; None where it does not."""
        if not self.in_traceback or self.last_line is None:
            return None
        return self.last_line if num_lines - self.last_line[0].number <= _LINES_OF_CUT else None

    def add_frame(self, frame: Frame) -> None:
        """Add a frame to the open traceback, or begin one: in an excerpt, or a log that was cut."""
        if not self.in_traceback:
            self.frames, self.in_traceback = [], True
        if len(self.frames) >= MAX_FRAMES:
            del self.frames[MAX_FRAMES // 2]
        self.frames.append(frame)


def update_event(event: LogEvent, later: LogEvent) -> None:
    """Let an event have the values of a later, equal one, if the job went on in between: it survived the first one."""
    if later.progress > event.progress + _PROGRESS_OF_ANOTHER or later.num_retries > event.num_retries:
        for name in LogEvent.__dataclass_fields__:
            setattr(event, name, getattr(later, name))
