# SPDX-License-Identifier: Apache-2.0
"""Rules are found by a literal of their pattern, whatever their number, and the reader lets their lines through.

Needs nothing; seconds.
"""

from __future__ import annotations

import io
import re

import pytest

from harness.diagnosis.reader.log_reader import MAX_EQUAL_LINES, LogReader
from harness.diagnosis.rules.line_matcher import RuleIndex, all_rules
from harness.diagnosis.rules.pattern_literals import find_literals
from tests.support.cluster_logs import CASES

LINES = sorted({line.strip() for case in CASES for line in case.text.splitlines() if line.strip()})


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("out of memory", ("out of memory",)),
        ("[Oo]ut of memory: Kill(?:ed)? process", ("ut of memory: Kill",)),
        (r"rank \d+ of (?P<all>\d+) is missing", (" is missing",)),
        ("(?:NameError|UnboundLocalError): x", ("NameError", "UnboundLocalError")),
        (r"^Error: \S+(?!\.so) failed to load", (" failed to load",)),
        (r"colou?r of the tensor|shape of it", ("r of the tensor", "shape of it")),
        ("ab+c*d{0,2}e{3}", ("ab",)),
        (r"a\.b\(c\)", ("a.b(c)",)),
        (r"\d+|abc", ()),
    ],
)
def test_the_literals_of_a_pattern(pattern, literals):
    assert find_literals(pattern) == literals


def test_every_match_contains_a_literal():
    for rule in all_rules():
        for line in LINES:
            if (match := rule.pattern.search(line)) and rule.literals:
                assert any(literal in match[0] for literal in rule.literals), (rule.pattern.pattern, line)


def test_the_index_finds_what_a_search_of_all_rules_finds():
    """In their order, of which the first counts."""
    rules = all_rules()
    index = RuleIndex([rule.literals for rule in rules])
    for line in LINES:
        expected = [number for number, rule in enumerate(rules) if rule.pattern.search(line)]
        found = index.find(line)
        assert list(found) == sorted(found)
        assert [number for number in found if rules[number].pattern.search(line)] == expected, line


def test_the_work_on_a_line_does_not_grow_with_the_rules():
    """Of thousands of rules a line is compared with a few dozen, also where ten times as many are added."""
    literals = [rule.literals for rule in all_rules()]
    more = literals + [(f"{text[::-1]} number {i}",) for i in range(9) for texts in literals for text in texts[:1]]
    index, larger = RuleIndex(literals), RuleIndex(more)
    assert len(index.unfiled) <= 5
    tried = [len(index.find(line)) for line in LINES]
    assert sum(tried) / len(LINES) < 40
    assert max(tried) < len(literals) / 8
    assert sum(len(larger.find(line)) for line in LINES) < 3 * sum(tried)


def read_lines(text: str) -> int:
    return sum(1 for _ in LogReader(io.BytesIO(text.encode())))


def test_the_reader_lets_every_rule_through():
    """A line of a rule's literal alone, and one that begins with the name of an exception."""
    missed = []
    for rule in all_rules():
        for literal in rule.literals:
            lines = [f"SomeException: {literal}\n"] + ([f"{literal}\n"] if min(map(len, rule.literals)) > 3 else [])
            missed += [(rule.cause, line) for line in lines if not read_lines(line)]
    assert missed == []
    assert read_lines("step 3 of 7, all is well\nNCCL INFO Channel 01/0 : 3[3] -> 2[2] via P2P/IPC\n") == 0


def test_rules_without_a_literal_are_few():
    assert [rule.pattern.pattern for rule in all_rules() if not rule.literals] == []


def test_lines_that_differ_in_digits_alone_are_read_so_often_and_no_more():
    """Also where others stand in between; a kind that was seen costs no search."""
    text = "".join(f"[rank{i}]: ValueError: bad {i}\nstep {i} is done\n" for i in range(MAX_EQUAL_LINES + 500))
    reader = LogReader(io.BytesIO(text.encode()))
    numbers = [line.number for line in reader if b"ValueError" in line.raw]
    assert len(numbers) >= MAX_EQUAL_LINES
    assert reader.lines == 2 * (MAX_EQUAL_LINES + 500)


def test_a_log_full_of_failures_is_sampled_in_the_end():
    """Counted work: what is read does not grow with the log, beyond a few lines of each chunk."""
    words = [
        f"{a}{b}{c}" for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrst" for c in "abcdefghijklmnopqrst"
    ]
    text = "".join(f"{word} failed with an error of {other}\n" for other in words[:25] for word in words)
    reader = LogReader(io.BytesIO(text.encode()))
    count = sum(1 for _ in reader)
    assert reader.is_sampled
    assert reader.lines == 200_000
    assert count < 175_000


def test_patterns_are_of_the_syntax_that_is_parsed():
    """No flags and no conditions: `find_literals` does not know them."""
    odd = re.compile(r"\(\?(?:[aiLmsux-]+[:)]|\(|P=|>)|[*+?}]\+")
    assert [
        rule.pattern.pattern for rule in all_rules() if odd.search(re.sub(r"\\.|\[.*?\]", "x", rule.pattern.pattern))
    ] == []


@pytest.mark.parametrize("pattern", [r"one\ttwo", r"(a)\1", r"\x41rror"])
def test_an_escape_that_would_be_read_as_a_letter_is_refused(pattern):
    with pytest.raises(ValueError, match="is not read here"):
        find_literals(pattern)
