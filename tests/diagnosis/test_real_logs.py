# SPDX-License-Identifier: Apache-2.0
"""Logs of jobs that really went wrong, as `benchmarks/log_causes.py` provokes them. Needs nothing; a second.

`logs/answers.tsv` says of each what is right: the cause (several where more than one would be), and the rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tracebacks import diagnose_text

LOGS = Path(__file__).parent / "logs"
ROWS = [line.split("\t") for line in (LOGS / "answers.tsv").read_text().splitlines()]


@pytest.mark.parametrize(("name", "causes", "rank"), ROWS, ids=[row[0] for row in ROWS])
def test_the_cause_that_was_provoked(name, causes, rank):
    diagnosis = diagnose_text((LOGS / f"{name}.txt").read_bytes())
    if causes == "completed":
        assert (diagnosis.state, diagnosis.cause) == ("completed", "")
        return
    assert diagnosis.state == "failed"
    assert diagnosis.cause in causes.split(" or ")
    assert not rank or diagnosis.rank == int(rank)


def test_every_log_has_an_answer():
    assert sorted(path.stem for path in LOGS.glob("*.txt")) == sorted(row[0] for row in ROWS)
