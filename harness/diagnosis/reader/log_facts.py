# SPDX-License-Identifier: Apache-2.0
"""Facts that a log states of its job: releases of packages, the configuration or its file, ranks, size of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.diagnosis.diagnosis_types import LogFacts
from harness.diagnosis.reader.line_prefix import parse_line

START_BYTES = 1 << 24
"""Programs state these facts when they start; later blocks are not searched."""
_MAX_CONFIG_BYTES = 1 << 18
_MAX_CONFIG_LINES = 4000
_MAX_FILES = 8
_MAX_LINES_OF_WORD = 300
_WORDS = b"version|eepspeed|orch|orld|WORLD_SIZE|params|arameter|json = {|_file|info .|harness ".split(b"|")
_VERSION = r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:\.?(?:a|b|rc|post|dev)\d+)*)"
_VERSION_LINES = (
    re.compile(rf"(DeepSpeed) info: version={_VERSION}"),
    re.compile(rf"^(torch|deepspeed) (?:version|info) \.+ \[?'?{_VERSION}"),
    re.compile(rf"(?<![\w/-])(deepspeed|torch|transformers|accelerate|peft|trl)==+{_VERSION}", re.IGNORECASE),
    re.compile(
        rf"(?<!\w)`?(deepspeed|pytorch|torch|transformers|accelerate|peft|trl)`? version ?(?:\(GPU\?\))?: *{_VERSION}",
        re.IGNORECASE,
    ),
    re.compile(rf"\b(deepspeed|torch|transformers|accelerate|peft|trl)-{_VERSION}(?:\+\w+)?(?:\.dist-info|-py3|\.egg)"),
)
_WORLD_SIZE = re.compile(
    r"\bdist_world_size=(\d{1,5})\b|\b(?:world[_ ]size|WORLD_SIZE|World Size)['\"]?[=: ]+(\d{1,5})\b"
)
_NUM_PARAMETERS = (
    re.compile(r"Number of trainable parameters = (\d[\d,]*)()"),
    re.compile(r"\|\| all params: (\d[\d,]*)()"),
    re.compile(r"num_elems = (\d+(?:\.\d+)?)([BM]?)"),
    re.compile(r"\b[Nn]umber of parameters[:=] *(\d[\d,]*(?:\.\d+)?) ?([BM]?)\b"),
)
_NAMED_FILE = re.compile(
    r"(?:--(?:deepspeed|deepspeed_config|ds_config|config_file)(?:=|\s+|', '|\", \")"
    r"|\b(?:deepspeed_config_file|deepspeed)['\"]?: +|harness launch )"
    r"['\"]?(?P<path>[\w./~+-]{1,300}\.(?:json|ya?ml))\b"
)


class FactReader:
    """Collects the `facts` of one log."""

    def __init__(self) -> None:
        self.facts = LogFacts()
        self._size = self._json_bytes = 0
        self._json_lines: list[str] | None = None

    def add_block(self, block: bytes) -> None:
        """Read the lines of a block that may state a fact."""
        self._size += len(block)
        if self._size > START_BYTES and self._size != len(block):
            return
        if self._json_lines is not None:
            self._read_json(block.split(b"\n"))
        for line in _find_lines(block):
            self._read_line(parse_line(line).text)
        start = block.find(b"json = {")
        if start >= 0 and not self.facts.config and self._json_lines is None:
            self._json_lines, self._json_bytes = ["{"], 0
            self._read_json(block[start:].split(b"\n")[1:])

    def _read_line(self, text: str) -> None:
        facts = self.facts
        _add_versions(facts, text)
        if not facts.world_size and (match := _WORLD_SIZE.search(text)):
            facts.world_size = int(next(group for group in match.groups() if group))
        for pattern in _NUM_PARAMETERS:
            if match := pattern.search(text):
                scale = {"B": 1_000_000_000, "M": 1_000_000}.get(match[2], 1)
                number = int(float(match[1].replace(",", "")[:24]) * scale)
                facts.num_parameters = max(facts.num_parameters, min(number, 1 << 50))
        for match in _NAMED_FILE.finditer(text):
            if match["path"] not in facts.config_files and len(facts.config_files) < _MAX_FILES:
                facts.config_files.append(match["path"])

    def _read_json(self, lines: list[bytes]) -> None:
        """Collect the lines of the printed JSON, up to its closing brace in the first column."""
        if self._json_lines is None:
            return
        for raw in lines:
            text = parse_line(raw[:4096]).text
            self._json_lines.append(text)
            self._json_bytes += len(text) + 1
            if text == "}":
                self.facts.config = "\n".join(self._json_lines)
                self._json_lines = None
                return
            if len(self._json_lines) > _MAX_CONFIG_LINES or self._json_bytes > _MAX_CONFIG_BYTES:
                self._json_lines = None
                return


def add_frame_versions(facts: LogFacts, files: Sequence[str]) -> None:
    """Add the releases in the paths of a traceback, as eggs and build folders have them."""
    for file in files:
        _add_versions(facts, file)


def _add_versions(facts: LogFacts, text: str) -> None:
    for pattern in _VERSION_LINES:
        for match in pattern.finditer(text):
            name = match[1].lower().replace("pytorch", "torch")
            facts.versions.setdefault(name, match[2])


def _find_lines(block: bytes) -> Iterator[bytes]:
    starts = set[int]()
    for word in _WORDS:
        position, count = block.find(word), 0
        while position >= 0 and count < _MAX_LINES_OF_WORD:
            starts.add(block.rfind(b"\n", 0, position) + 1)
            count += 1
            end = block.find(b"\n", position)
            position = block.find(word, end) if end >= 0 else -1
    for start in sorted(starts):
        end = block.find(b"\n", start, start + 2000)
        yield block[start : end if end >= 0 else start + 2000]
