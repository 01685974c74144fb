# SPDX-License-Identifier: Apache-2.0
"""The losses, norms, rates and bytes that progress lines print, as series in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.diagnosis.reader.line_prefix import parse_line

_NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_PATTERNS = {
    "loss": re.compile(rf"(?<![\w/])['\"]?(?:lm |train_?)?loss['\"]?\s?[=:]\s?\[?{_NUMBER}"),
    "norm": re.compile(rf"grad[_ ]norm['\"]?\s?[=:]\s?{_NUMBER}"),
    "lr": re.compile(rf"(?:learning[_ ]rate|(?<!\w)lr)['\"]?\s?[=:]\s?\[?{_NUMBER}"),
    "rate": re.compile(rf"(?:CurrSamplesPerSec=|samples/s(?:ec)?['\"]?[=:] ?){_NUMBER}|{_NUMBER} ?it/s"),
    "seconds": re.compile(rf"{_NUMBER} ?s/it"),
    "iteration": re.compile(rf"elapsed time per iteration \(m?s\): ?{_NUMBER}"),
    "batch": re.compile(rf"global batch size: +{_NUMBER}"),
    "memory": re.compile(rf"(?:MemAllocated=|\bMA |memory[_ ]allocated[\w (]*\)?['\"]?\s?[=:] ?){_NUMBER}"),
}
_RESUME = re.compile(
    rb"Resum(?:ing|ed) (?:training )?from|Loading states from|successfully read \d+ ZeRO|loaded universal|"
    rb"Loaded checkpoint|Attempting to resume"
)
_MAX_LINES, _MAX_RESUMES, _MAX_SAMPLES = 4096, 64, 1 << 16
_LINES_OF_BLOCK = 256
_MAX_CHARS = 400


class Sample(NamedTuple):
    """A number as printed, and the line that has it, counted in its log."""

    value: float
    line: int


@dataclass(slots=True)
class MetricSeries:
    """The samples by name (loss, norm, lr, rate, iteration, batch, memory) of the first writer, in order.
    `resumes` are lines that load a checkpoint. Of a long log only some lines of each block are read.
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    resumes: list[int] = field(default_factory=list)
    _num_lines: int = 0
    _writer: tuple[str, int | None] | None = None

    def add_block(
        self, lines: Sequence[bytes], marks: Sequence[int], beginnings: Sequence[int], first_line: int
    ) -> None:
        """Read the lines of a block that show progress and that begin a phase, by their indexes."""
        if len(self.resumes) < _MAX_RESUMES:
            self.resumes += [first_line + i + 1 for i in beginnings[:_MAX_RESUMES] if _RESUME.search(lines[i])]
        chosen = marks[:_LINES_OF_BLOCK] if self._num_lines < _MAX_LINES else (*marks[:1], *marks[1:][-1:])
        for index in chosen:
            self._add_line(lines[index][:_MAX_CHARS], first_line + index + 1)

    def _add_line(self, raw: bytes, number: int) -> None:
        self._num_lines += 1
        parsed = parse_line(raw)
        writer = (parsed.host, parsed.rank)
        self._writer = self._writer or writer
        if writer != self._writer:
            return
        for name, pattern in _PATTERNS.items():
            if (match := pattern.search(parsed.text)) is None:
                continue
            value = float(next(group for group in match.groups() if group))
            if name == "seconds":
                value = 1 / value if value else 0.0
            samples = self.samples.setdefault("rate" if name == "seconds" else name, [])
            if len(samples) < _MAX_SAMPLES:
                samples.append(Sample(value, number))
