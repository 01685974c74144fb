# SPDX-License-Identifier: Apache-2.0
"""The screen of `harness doctor --model`: every question, with its reason and its page."""

from __future__ import annotations

import json

from harness.facts.model_table import find_row
from harness.finding_pages import load_pages
from harness.hostinfo.model_answers import QUESTIONS, unknown_answers
from harness.views.model_screen import _TITLES, answers_as_json, render_answers
from harness.views.style import Style


def test_every_question_has_a_line_on_one_screen() -> None:
    row = find_row("deepseek_v3")
    assert row is not None
    lines = render_answers("my-model", row, Style(colour=False)).splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 120 for line in lines)
    for question in QUESTIONS:
        assert sum(_TITLES[question][0] in line for line in lines) == 1
    assert any("no   has LoRA in every layer" in line and "MD166" in line for line in lines)
    assert any(".experts." in line for line in lines)


def test_what_is_not_known_says_why() -> None:
    text = render_answers("m", unknown_answers("killed after 120 s"), Style(colour=False))
    assert text.count("killed after 120 s") == len(QUESTIONS)
    body = json.loads(answers_as_json("m", unknown_answers("killed after 120 s")))
    assert body["answers"]["zero3"] == {"holds": None, "reason": "killed after 120 s", "names": []}


def test_the_pages_exist() -> None:
    assert {page for _, page in _TITLES.values() if page not in ("", "MD020", "MD024")} <= set(load_pages())
