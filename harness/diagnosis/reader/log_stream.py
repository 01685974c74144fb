# SPDX-License-Identifier: Apache-2.0
"""The state of one writer of a log: its traceback, its message of several lines, its clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from harness.diagnosis.catalogue import causes_by_id
from harness.diagnosis.diagnosis_types import Frame, LogEvent, shows_rank
from harness.diagnosis.reader.line_prefix import ParsedLine
from harness.diagnosis.reader.log_reader import BOX_END, LogLine
from harness.diagnosis.rules.line_matcher import WARNING_LINE, is_exception_line, match_line

MAX_FRAMES = 60
_LINES_OF_CUT = 8
"""A traceback that is still open so few lines before the end of its log was cut."""
ELISION = re.compile(
    r"\s*(?:[\[(<][^\[\]()<>]{0,60}?(?:\.\.|\u2026|snip|omit|truncat|left out)[^\[\]()<>]{0,60}[\])>]|\.{3,}|\u2026)"
    r"(?:\s+|$)"
)
"""What stands for the lines that somebody left out of a quoted traceback, on a line of its own or before another."""
_BOX_FRAME = re.compile(r"\u2502 (?P<file>\S+\.py):(?P<line>\d+) in +(?P<function>[\w<>]*)")
_BOX_CODE = re.compile(r"\u2502 \u2771 *(?P<line>\d+) [\u2502 ]*(?P<code>.*?) *\u2502?$")
_BOX_NAME = re.compile(r"\u2502 (?P<function>[\w<>]+) +\u2502$")
_CELL_HEAD = re.compile(r"[A-Z]\w+ +Traceback \(most recent call last\)")
_CELL_FRAME = re.compile(
    r"(?:File )?(?P<file>(?:[~/]|[A-Za-z]:[\\/])[^\s:]*\.py|<ipython-input-[^>]*>|(?:Cell In|Input In) ?\[\d+\])"
    r"(?::(?P<line>\d+))?(?:, line (?P<cell_line>\d+)|,? in (?:[\w<>]+\.)*(?P<function>\w+|<\w[^>]*>)(?:\(.*)?)$"
)
_CELL_CODE = re.compile(r"-+> (?P<line>\d+) (?P<code>.*)")
_CELL_CONTEXT = re.compile(r" {0,8}\d+(?: |$)")
"""Frames of IPython, `File PATH:LINE, in NAME(ARGUMENTS)` and `PATH in NAME(ARGUMENTS)`, with lines around that of the
frame, which an arrow marks.
"""
_INTERRUPT = "KeyboardInterrupt"
"""Launcher and ranks raise it."""
WRAPPED_CAUSES = ("", "LG054", "LG067", "LG072", "LG073")
"""Causes that an outer exception replaces: an unknown one, a file, the network."""
BY_HAND, _OF_ANOTHER = -1, re.compile(r"[\w./-]+:|\d|.*\d+%")
"""The width of a message that a quote may have broken anywhere; a line that continues none."""
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
    box: tuple[int, int] = (0, 0)
    """Number and width of the last line of a box that rich drew around a traceback."""
    box_head: str = ""
    """A path that rich broke in the line above, before its line number or within it."""
    wrap_width: int = 0
    """Of the open message: rich breaks an exception at the width of the box above it. 0 for one that nobody broke."""
    is_of_cells: bool = False
    """IPython wrote the open traceback."""
    is_headless: bool = False
    """The open traceback began with a frame."""
    is_elided: bool = False
    """Somebody who quoted the traceback left lines out."""
    frame_indent: int = 0
    """Of the last frame: the exception stands to its left, however deep a program or a quote has put both."""

    def note_line(self, line: LogLine, parsed_line: ParsedLine) -> None:
        """Remember the last line of a traceback, and whether Python ignores the exception that follows."""
        if parsed_line.text.startswith(BOX_END):
            self.box = line.number, len(parsed_line.text.rstrip())
        if self.in_traceback or parsed_line.text.startswith("Traceback"):
            self.last_line = line, parsed_line
        elif parsed_line.text.startswith("Exception ignored in"):
            self.is_ignored = True

    def wraps_at(self, line: LogLine, text: str) -> int | None:
        """The width at which rich breaks the exception that starts here below a box, or `BY_HAND` where a quote may
        break it, whose first line is of no known cause; None for others.
        """
        is_below = self.box[0] == line.number - 1 and len(text) <= self.box[1]
        if not is_exception_line(text) or is_below:
            return self.box[1] if is_below and is_exception_line(text) else None
        may_be_broken = not self.in_traceback and text[-1].isalnum() and " " in text and not WARNING_LINE.search(text)
        match = match_line(text, (), in_traceback=False) if may_be_broken else None
        return BY_HAND if match is not None and not match.cause else None

    def start_message(self, line: LogLine, parsed_line: ParsedLine, wrap_width: int) -> None:
        """Open a message of several lines."""
        self.message_start, self.message_lines, self.wrap_width = (line, parsed_line), [parsed_line.text], wrap_width

    def is_wrapped(self, text: str) -> bool:
        """Would the line have fitted above, if it were no part of the open message? True for one that nobody broke."""
        width = self.wrap_width
        if width == BY_HAND:
            return text[:1].islower() and not _OF_ANOTHER.match(text)
        return not width or len(text) <= width < len(self.message_lines[-1]) + 1 + len(text.split(" ", 1)[0])

    @property
    def is_by_hand(self) -> bool:
        """Is a message open that a quote may have broken?"""
        return self.message_start is not None and self.wrap_width == BY_HAND

    def take_message(self) -> str:
        """Close the message, and return its text."""
        text = (" " if self.wrap_width else " | ").join(self.message_lines)
        if self.is_by_hand and not ((match := match_line(text, (), in_traceback=False)) and match.cause):
            text = self.message_lines[0]
        self.message_start, self.message_lines = None, []
        return text

    def read_box(self, text: str) -> bool:
        """Read a line of the box that rich draws around a traceback. Is it one?"""
        if text[:1] not in ("\u2502", "\u256d", "\u2570"):
            return False
        last = self.frames[-1] if self.frames and self.in_traceback else None
        inner = text.strip("\u2502 ")
        match, head = _BOX_FRAME.match(text) or _BOX_FRAME.match(f"\u2502 {self.box_head}{inner}"), self.box_head
        self.box_head = inner if not match and not head and inner.startswith("/") else ""
        if match:
            self.add_frame(Frame(match["file"], int(match["line"]), match["function"]))
        elif match := _BOX_CODE.match(text):
            self.frames[-1:] = [replace(last, code=match["code"])] if last else self.frames[-1:]
            if last is None:
                self.add_frame(Frame("", int(match["line"]), "", match["code"]))
        elif last is not None and not last.function and (match := _BOX_NAME.match(text)):
            self.frames[-1] = replace(last, function=match["function"])
        return True

    def read_cell(self, text: str) -> bool:
        """Read a line of a traceback as IPython prints it. Is it one?"""
        if match := _CELL_FRAME.match(text):
            function = match["function"] or "<"
            function = "<module>" if function.startswith("<") else function
            self.add_frame(Frame(match["file"], int(match["line"] or match["cell_line"] or 0), function), 0)
            self.is_of_cells = True
        elif _CELL_HEAD.match(text):
            self.open_traceback()
            self.is_of_cells = True
        elif self.in_traceback and self.is_of_cells and (match := _CELL_CODE.match(text)) and self.frames:
            code = match["code"].partition("  #")[0].strip()
            self.frames[-1] = replace(self.frames[-1], line=int(match["line"]), code=code)
        else:
            return self.in_traceback and self.is_of_cells and (not text or bool(_CELL_CONTEXT.match(text)))
        return True

    def find_cut(self, num_lines: int, lines_before: int, events: list[LogEvent]) -> tuple[LogLine, ParsedLine] | None:
        """The last line of a traceback in which the log, of so many lines, ends; None where it does not, in that of a
        launcher behind another failure of `events`, and where the exception was quoted above its frames.
        """
        is_first = all(event.level == "hint" for event in events)
        if not self.in_traceback or self.last_line is None or not (is_first or shows_rank(self.frames)):
            return None
        last, event = self.last_line[0].number, self.last_event
        is_near = event is not None and last + lines_before - event.line_number <= 3 * len(self.frames)
        if event is not None and is_near and self.is_headless and not event.frames and is_exception_line(event.text):
            event.frames = tuple(self.frames)
            return None
        return self.last_line if num_lines - last <= _LINES_OF_CUT else None

    def open_traceback(self) -> None:
        """A traceback begins."""
        self.frames, self.in_traceback, self.is_elided, self.frame_indent = [], True, False, 0
        self.is_headless = self.is_of_cells = False

    def is_left_of_frames(self, text: str) -> bool:
        """Does the line end the open traceback, by its place? Carets mark a part of a line of source; behind lines that
        somebody left out, in a quote without indentation, or among those of another writer, a place says little.
        """
        plain = text.lstrip()
        is_unsure = text[:1] == " " or not self.frame_indent
        if is_unsure and self.frames and not self.frames[-1].code and not is_exception_line(plain):
            return False
        is_left = len(text) - len(plain) < max(self.frame_indent, 1)
        is_said = is_exception_line(plain) and (self.is_elided or ": " in plain)
        return plain[:1] not in ("", "^", "~") and (is_left or is_said)

    def add_frame(self, frame: Frame, indent: int = 2) -> None:
        """Add a frame to the open traceback, or begin one: in an excerpt, or a log that was cut."""
        if not self.in_traceback:
            self.open_traceback()
            self.is_headless = True
        self.frame_indent = indent
        if len(self.frames) >= MAX_FRAMES:
            del self.frames[MAX_FRAMES // 2]
        self.frames.append(frame)


def update_event(event: LogEvent, later: LogEvent) -> None:
    """Let an event have the values of a later, equal one, if the job went on in between: it survived the first one. A
    message that was printed without its traceback gets that of the exception.
    """
    is_same = event.text in later.text or later.text.startswith(_INTERRUPT)
    if not shows_rank(event.frames) and is_same and (shows_rank(later.frames) or (later.frames and not event.frames)):
        event.frames, event.text = later.frames, later.text
    is_code = event.text.startswith(("raise ", "assert "))  # its exception follows
    if is_code or later.progress > event.progress + _PROGRESS_OF_ANOTHER or later.num_retries > event.num_retries:
        for name in LogEvent.__dataclass_fields__:
            setattr(event, name, getattr(later, name))


def replaces_inner(event: LogEvent, inner: LogEvent) -> bool:
    """Does an exception say more than the one that it was chained to? One whose message has no words of its own then
    says those of the unknown exception within it.
    """
    is_same = inner.cause == event.cause and bool(event.change) > bool(inner.change)
    if not event.cause or not (is_same or inner.cause in WRAPPED_CAUSES):
        return False
    cause = causes_by_id().get(event.cause)
    if cause is not None and not event.title and not inner.cause:
        event.title, event.sure = f"{cause.title}: `{inner.text[:200]}`", False
    return True
