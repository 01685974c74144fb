"""Logs in the forms that clusters print them. Needs nothing; a second."""

from __future__ import annotations

import io

import pytest
from field_logs import CASES

from harness.diagnosis import diagnose


def answer(text: str | bytes, **more):
    return diagnose([io.BytesIO(text.encode() if isinstance(text, str) else text)], **more)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_first_cause_its_rank_and_its_host(case):
    found = answer(case.text)
    assert (found.state, found.cause) == ("failed", case.cause), found
    assert case.rank is None or found.rank == case.rank, found
    assert not case.host or found.host == case.host, found
    if case.never_certain or not case.cause:
        assert found.confidence != "certain"
    assert 0 < len(found.lines) <= 10
    assert found.title
    assert found.change
