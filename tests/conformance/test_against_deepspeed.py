# SPDX-License-Identifier: Apache-2.0
"""The fixed sample, each case on the real DeepSpeed: about a second a case on 2 idle cores once the ops are compiled.
`make conformance` gives the same cases as a report.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import report
from .__main__ import SEED
from .draw import draw
from .judge import Judge
from .outcome import judged

pytestmark = pytest.mark.training

pytestmark = pytest.mark.training
CASES = 150


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as started:
        yield started


@pytest.mark.parametrize("number", range(CASES))
def test_what_we_say_is_what_deepspeed_does(judge: Judge, number: int) -> None:
    outcome = judged(draw(SEED, number), judge)
    assert outcome.kind not in report.SHOWN, report.line(outcome)
