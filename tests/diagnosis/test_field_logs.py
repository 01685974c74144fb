# SPDX-License-Identifier: Apache-2.0
"""Logs in the forms that clusters print them. Needs nothing; a second."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import diagnose
from tests.support.field_logs import CASES


def diagnose_text(text: str | bytes, **more):
    return diagnose([io.BytesIO(text.encode() if isinstance(text, str) else text)], **more)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_first_cause_its_rank_and_its_host(case):
    diagnosis = diagnose_text(case.text)
    assert (diagnosis.state, diagnosis.cause) == ("failed", case.cause), diagnosis
    assert case.rank is None or diagnosis.rank == case.rank, diagnosis
    assert not case.host or diagnosis.host == case.host, diagnosis
    if case.never_certain or not case.cause:
        assert diagnosis.confidence != "certain"
    assert 0 < len(diagnosis.lines) <= 10
    assert diagnosis.title
    assert diagnosis.change
