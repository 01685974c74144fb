# SPDX-License-Identifier: Apache-2.0
"""The time that a pattern needs for lines that are made to keep it busy: a log is untrusted. Needs nothing; 20 s."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import time
from collections.abc import Iterator

import pytest

import harness.diagnosis
from harness.diagnosis import explanation
from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.reader import log_scanner
from harness.diagnosis.reader.log_reader import CHUNK_BYTES, MAX_LINE_BYTES
from harness.diagnosis.rules import stated_remedy
from harness.diagnosis.rules.line_matcher import MAX_MATCHED_CHARS, all_rules, match_line
from harness.entry_file import read_entries
from tests.support.regex_samples import sample_parts
from tests.support.tracebacks import diagnose_text

MAX_SECONDS = 0.5
"""Of one search, several times what the slow ones need on busy cores. `.*` twice between words that repeat, or a `\\S+`
in front of a `\\S*`, need seconds.
"""
LONGEST_LINE = 1 << 13
FILLERS = ("a", "1", " ", ".", "/", ":", "a1.", "a ", "-a1", "'a', ", "aA1_", "A.", "[1]")


def literals_of(pattern: str) -> list[str]:
    """The texts between the special characters of a pattern."""
    plain = re.sub(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[wWsSdDbB]|\?P<\w+>|\(\?<?[=!:]", "|", pattern)
    texts = re.split(r"(?<!\\)[()|?*+^$.{}]", plain)
    return [text for text in dict.fromkeys(re.sub(r"\\(.)", r"\1", text) for text in texts) if text]


def hostile_lines(pattern: str) -> Iterator[str]:
    """Lines of the longest length that patterns see: fillers, and the words of the pattern repeated, alone and in order."""
    texts = literals_of(pattern)[:10]
    units = [*FILLERS, *texts, *(f"{text} a1" for text in texts)]
    units += ["".join(texts[:count]) for count in range(2, len(texts) + 1)]
    units += [f"{' a '.join(texts[:count])} " for count in range(2, len(texts) + 1)]
    yield from ((unit * (MAX_MATCHED_CHARS // len(unit) + 1))[:MAX_MATCHED_CHARS] for unit in units)
    yield from ((text + filler * MAX_MATCHED_CHARS)[:MAX_MATCHED_CHARS] for text in texts for filler in FILLERS[:5])


def is_slow(pattern: re.Pattern[str], line: str) -> bool:
    """In each of three searches: busy cores take up to three times as long for one."""
    for _ in range(3):
        start = time.process_time()
        pattern.search(line)
        if time.process_time() - start < MAX_SECONDS:
            return False
    return True


@pytest.mark.parametrize("part", range(8))
def test_no_pattern_is_slow(part):
    slow = {}
    for pattern in dict.fromkeys(rule.pattern for rule in all_rules()[part::8]):
        for line in hostile_lines(pattern.pattern):
            if is_slow(pattern, line):
                slow[pattern.pattern] = line[:60]
                break
    assert not slow


def kind_patterns(name: str, *fields: str) -> list[re.Pattern[str]]:
    entries = read_entries(CATALOGUE / "phases" / f"{name}.txt").values()
    return [re.compile(entry[field]) for entry in entries for field in fields if field in entry]


def module_patterns() -> list[re.Pattern[str]]:
    """Those at the top of the modules of the package, as patterns of text."""
    names = [module.name for module in pkgutil.walk_packages(harness.diagnosis.__path__, "harness.diagnosis.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    patterns = {value for value in values if isinstance(value, re.Pattern)}
    return [p if isinstance(p.pattern, str) else re.compile(p.pattern.decode(), p.flags) for p in patterns]


@pytest.mark.parametrize(
    ("patterns", "length"),
    [
        pytest.param(kind_patterns("python_errors", "pattern"), MAX_LINE_BYTES, id="errors"),
        pytest.param([pattern for pattern, _ in stated_remedy._RULES], stated_remedy._MAX_CHARS, id="remedies"),
        pytest.param(module_patterns(), MAX_LINE_BYTES, id="modules"),
    ],
)
def test_no_pattern_of_a_kind_is_slow(patterns, length):
    """Of the kinds of exceptions, of remedies and at the top of modules, on as much of a line as is searched."""
    slow = {}
    for pattern in patterns:
        for line in ((line * 2)[:length] for line in hostile_lines(pattern.pattern)):
            if is_slow(pattern, line):
                slow[pattern.pattern] = line[:60]
                break
    assert not slow
    assert len(patterns) > 20


def hostile_texts(pattern: str) -> Iterator[str]:
    """Texts of as many bytes as the kinds of jobs are searched for in, of the longest lines or of many short ones: parts
    that match, repeated alone, in order and before others.
    """
    parts = sample_parts(pattern)[:9]
    units = [
        join.join(parts[start:end]) for end in range(1, len(parts) + 1) for start in (0, end - 1) for join in ("", " ")
    ]
    for unit in dict.fromkeys(units):
        yield from (repeat(unit + end, CHUNK_BYTES // 2) for end in ("", " ", "\n"))
        yield from ((unit + repeat(filler, LONGEST_LINE))[:LONGEST_LINE] for filler in FILLERS)
    for first, second in itertools.permutations(parts, 2):
        yield from (
            repeat(first + end, CHUNK_BYTES // 4) + repeat(second + end, CHUNK_BYTES // 4) for end in (" ", "\n")
        )


def repeat(unit: str, length: int) -> str:
    return unit * (length // len(unit))


@pytest.mark.parametrize("field", ["words", "no words"])
def test_no_kind_of_job_is_slow(field):
    slow = {}
    for pattern in (re.compile(pattern.pattern.encode()) for pattern in kind_patterns("job_kinds", field)):
        for text in hostile_texts(pattern.pattern.decode()):
            if is_slow(pattern, explanation._LONG_LINE.sub(rb"\1\2", text.encode())):
                slow[pattern.pattern] = text[:60], text[-60:]
                break
    assert not slow


def test_the_ends_of_a_long_line_are_matched():
    filler = " x" * 100_000
    assert match_line(f"torch.OutOfMemoryError: CUDA out of memory. {filler}", (), in_traceback=False).cause == "LG001"
    assert match_line(f"{filler} CUDA error: out of memory", (), in_traceback=False).cause == "LG001"


@pytest.mark.parametrize(
    "unit", ["AutoEP metadata ", "async_io swap ", "AttributeError ForCausalLM ", ">= <= ", "libmpi"]
)
def test_a_hostile_log_takes_no_longer_than_its_size(unit):
    lines = "".join(f"ValueError: {number:x} {unit * 300}\n" for number in range(1000, 1200))
    start = time.process_time()
    diagnose_text(lines)
    assert time.process_time() - start < 20


@pytest.mark.parametrize("name", ["_RESTART", "_INTERRUPTION", "_ROOT_CAUSE_FIELD", "_SPAWNED", "_TORCHRUN_PID"])
def test_no_pattern_of_the_scanner_is_slow(name):
    pattern = getattr(log_scanner, name)
    assert not [line[:60] for line in hostile_lines(pattern.pattern) if is_slow(pattern, line * 4)]
