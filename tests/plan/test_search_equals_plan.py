# SPDX-License-Identifier: Apache-2.0
"""Search and plan say the same of each choice, to the digit. Needs nothing; a minute.

`benchmarks/search_equals_plan.py` asks 300 questions.
"""

from __future__ import annotations

import random

import pytest

from tests.support.drawn_questions import SEED, ask, draw_questions

QUESTIONS = draw_questions(20)


@pytest.mark.parametrize("index", range(len(QUESTIONS)))
def test_the_search_says_what_the_plan_says(index: int) -> None:
    question = QUESTIONS[index]
    answer = ask(question, random.Random(SEED + index))  # noqa: S311 - no secret
    assert answer.disagreements == (), question
