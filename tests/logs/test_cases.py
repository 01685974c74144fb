# SPDX-License-Identifier: Apache-2.0
"""The committed cases: `harness explain --log` answers each of them right.

Every log is written here, around a message as its program's source has it; `thread` in expected.json is the public
report with the settled cause.
"""

from __future__ import annotations

import json

import pytest

from tests.logs.__main__ import CASES
from tests.logs.grading import EXPECTED, diagnose_case, find_cases, grade_answer

LOG_CASES = find_cases(CASES)


@pytest.mark.parametrize("case", LOG_CASES, ids=lambda case: case.name)
def test_the_answer_is_right(case):
    answer = grade_answer(case, diagnose_case(case))
    assert answer.grade == "right", answer.failed_conditions


def test_every_case_names_its_thread():
    assert len(LOG_CASES) >= 50
    assert len({case.name for case in LOG_CASES}) == len(LOG_CASES)
    for case in LOG_CASES:
        text = (case.folder / EXPECTED).read_text(encoding="utf-8")
        values = json.loads(text)
        assert text.isascii(), case.name
        assert values["thread"].startswith("https://github.com/"), case.name
        assert values["cause"], case.name
        assert values["remedy"], case.name
        assert case.must, case.name
