# SPDX-License-Identifier: Apache-2.0
"""The fixed sample, each case on the real DeepSpeed: about a second a case on 2 idle cores once the ops are compiled.
HARNESS_NIGHTLY=1 runs all of them; `make conformance` gives the same cases as a report.
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
CASES = 150
BY_DAY = frozenset(
    map(
        int,
        """
        1 2 5 8 9 10 11 12 17 23 25 29 30 31 32 39 40 41 42 43 47 53 54 63 65 67 75 76 78 79 81 82 83 85 87
        90 93 95 102 104 105 106 107 109 110 112 113 118 119 121 122 123 125 127 130 131 132 138 139 143
        """.split(),
    )
)
"""They see every fault that the 150 see, and have one of each kind: `python -m benchmarks.tests_by_day conformance`,
benchmarks/results/tests-by-day-conformance-2026-11-28.md.
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as started:
        yield started


@pytest.mark.parametrize(
    "number", [n if n in BY_DAY else pytest.param(n, marks=pytest.mark.nightly) for n in range(CASES)]
)
def test_what_we_say_is_what_deepspeed_does(judge: Judge, number: int) -> None:
    outcome = judged(draw(SEED, number), judge)
    assert outcome.kind not in report.SHOWN, report.line(outcome)
