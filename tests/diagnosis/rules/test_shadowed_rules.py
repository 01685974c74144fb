# SPDX-License-Identifier: Apache-2.0
"""Rules that another one always precedes: they say something that nobody reads. Needs nothing; a second."""

from __future__ import annotations

import re

from harness.diagnosis.rules.line_matcher import all_rules, match_line


def test_no_pattern_stands_twice():
    seen: dict[tuple[str, str], str] = {}
    twice = []
    for rule in all_rules():
        key = rule.signature.pattern, rule.signature.frames
        if key in seen or (key[0], "") in seen:
            twice.append((rule.cause, key))
        seen.setdefault(key, rule.cause)
    assert not twice


def test_a_pattern_without_special_characters_matches_its_own_text():
    """Where its rule asks for no frames: an earlier rule has a part of the text, and wins."""
    shadowed = []
    for rule in all_rules():
        pattern = rule.signature.pattern.removeprefix("^").removesuffix("$")
        if rule.frames is not None or re.search(r"(?<!\\)[()|?*+^$.{}\[\]]|\\[A-Za-z]", pattern):
            continue
        text = re.sub(r"\\(.)", r"\1", pattern)
        matches = [match_line(line, (), in_traceback=False) for line in (text, f"RuntimeError: {text}", f"x: {text} y")]
        if all(match is None or match.pattern != rule.signature.pattern for match in matches):
            shadowed.append((rule.cause, text, matches[0] and (matches[0].cause, matches[0].pattern)))
    assert not shadowed
