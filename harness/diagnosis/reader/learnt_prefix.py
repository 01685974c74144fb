# SPDX-License-Identifier: Apache-2.0
"""A prefix that `line_prefix` does not know, learnt from two lines of a traceback that both have it."""

from __future__ import annotations

import re

from harness.diagnosis.reader.line_prefix import ParsedLine

_START = re.compile(
    r"(?P<prefix>\S.{0,100}?)(?:Traceback \(most recent call last\):|"
    r'\s\s(?P<frame>File) "[^"]+", line \d+(?:, in .+)?)$'
)
_CLOCK = re.compile(r"\d+(?:[-/]\d+){2}(?:T[\d:.]+Z?)?|\d+-\d+(?= \d+:)|\d+(?:[:.]\d+)+s?|\d+m?s\b|\d{6,}")
"""Numbers of a prefix that change with time. Others say who writes, unless they count lines."""
_RANK = re.compile(r"(?i)\brank[=: ]?(\d{1,5})\b")
_MAX_SHAPES, _MAX_WRITERS = 64, 4096


class PrefixLearner:
    """Learns prefixes by their shape, which is the prefix with any numbers in place of its own."""

    def __init__(self) -> None:
        self._writers: dict[re.Pattern[str], set[str]] = {}
        self._names_writer: dict[re.Pattern[str], bool] = {}
        """Of shapes that are known."""

    def strip(self, line: ParsedLine) -> ParsedLine:
        """The line without its prefix, with the rank that is in it, as far as the lines above have taught it."""
        for shape, names_writer in self._names_writer.items():
            if match := shape.match(line.text):
                rank = line.rank if (found := _RANK.search(match[0])) is None else int(found[1])
                stream = line.stream + (_CLOCK.sub("", match[0]) if names_writer else shape.pattern)
                return line._replace(text=line.text[match.end() :], rank=rank, stream=stream)
        may_start = '  File "' in line.text or line.text.endswith("call last):")
        match = _START.match(line.text) if may_start else None
        if match is None or len(self._writers) >= _MAX_SHAPES:
            return line
        writer = _CLOCK.sub("", match["prefix"])
        shape = re.compile(r"\d+".join(map(re.escape, re.split(r"\d+", match["prefix"]))))
        writers = self._writers.setdefault(shape, set())
        if writers and match["frame"]:
            self._names_writer[shape] = writer in writers
            return self.strip(line)
        writers.update({writer} if len(writers) < _MAX_WRITERS else ())
        return line
