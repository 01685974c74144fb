# SPDX-License-Identifier: Apache-2.0
"""The one door for everything that a command prints: other people's text steers no terminal and no CI job.

`guard_streams` replaces stdout and stderr while a command runs. Views still escape what they quote: they alone know
where a text of somebody else ends. What is a file or a command on purpose goes through `unguarded`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, cast

from harness.secret_text import hide_passwords

_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,24}m)")
_WORKFLOW_COMMAND = re.compile(r"^[ \t]*::[A-Za-z]|##\[", re.MULTILINE)
"""GitHub's runner reads `::command` at the start of a line and `##[command]` anywhere in it, of stdout and stderr."""
_MAX_MARKS = 8
"""Combining marks on one character; no script needs more, and hundreds cover the lines above."""


def escape_unprintable(text: str, keep: str = "") -> str:
    """The text with every character that could move a cursor or start a line as an escape, such as `\\x1b`.

    `keep` names characters that stay, such as a line break where the text has lines of its own.
    """
    if not text.isascii():
        text = _escape_piled_marks(text)
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else repr(c)[1:-1] for c in text)


def escape_line(line: str, *, colour: bool) -> str:
    """A line of another program's output, with its colours where the terminal shows colours; they end with it."""
    parts = _COLOUR.split(line)
    if len(parts) == 1:
        return escape_unprintable(line, keep="\t")
    kept = "".join(
        (part if colour else "") if at % 2 else escape_unprintable(part, keep="\t") for at, part in enumerate(parts)
    )
    return f"{kept}\x1b[0m" if colour else kept


def escape_workflow_commands(text: str) -> str:
    """The text with one character of each escaped as JSON does, so that GitHub's runner reads no command."""
    return _WORKFLOW_COMMAND.sub(lambda match: f"{match[0][:-1]}{_escape_char(match[0][-1])}", text)


def _escape_piled_marks(text: str) -> str:
    import unicodedata

    out, marks = [], 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char).startswith("M") else 0
        out.append(char if marks <= _MAX_MARKS else _escape_char(char))
    return "".join(out)


def _escape_char(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"


class GuardedStream:
    """A text stream that escapes control characters and workflow commands; `colour`: ANSI colours pass.

    An escape is one of JSON, such as `\\u005b`, so that a JSON document means the same.
    """

    def __init__(self, stream: TextIO, *, colour: bool = False) -> None:
        self.unguarded, self._colour = stream, colour
        self._line_end = ""
        """The end of the line that is not finished; where it has only blanks so far, its blanks."""

    def write(self, text: str) -> int:
        """Write the text, escaped and without passwords; returns its length. Raises what the stream raises."""
        text = hide_passwords(text)
        if not all(line.isascii() and line.isprintable() for line in text.split("\n")):
            parts = _COLOUR.split(text) if self._colour else [text]
            text = "".join(part if at % 2 else self._escape_controls(part) for at, part in enumerate(parts))
        self.unguarded.write(self._escape_commands(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def _escape_controls(self, text: str) -> str:
        text = text if text.isascii() else _escape_piled_marks(text)
        return "".join(c if c.isprintable() or c in "\n\t" else _escape_char(c) for c in text)

    def _escape_commands(self, text: str) -> str:
        before = len(self._line_end)
        whole = self._line_end + text
        if "::" in whole or "##[" in whole:
            whole = escape_workflow_commands(whole)
        last = whole.rpartition("\n")[2]
        started = last.lstrip(" \t")
        self._line_end = "" if not last else started if len(started) <= 2 else f".{started[-2:]}"
        return whole[before:]

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's, but for `buffer`: bytes would pass by the door, as click does for ASCII."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.unguarded, name)


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself: for text that is a file, for a live display, and for workflow commands that are meant so."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream


@contextlib.contextmanager
def guard_streams(has_colour: Callable[[TextIO], bool] = lambda _: False) -> Iterator[None]:
    """Everything printed in this block passes the door; `has_colour` says which streams show colours."""
    saved = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast("TextIO", GuardedStream(unguarded(stream), colour=has_colour(stream))) for stream in saved
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = saved
