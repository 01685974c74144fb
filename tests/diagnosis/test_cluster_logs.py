# SPDX-License-Identifier: Apache-2.0
"""Lines of the kernel, schedulers, Kubernetes, Ray, NCCL and agents lead to their causes. Needs nothing; a second."""

from __future__ import annotations

import pytest

from tests.support.cluster_logs import CASES
from tests.support.tracebacks import diagnose_text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_and_what_to_change(case):
    diagnosis = diagnose_text(case.text)
    assert (diagnosis.state, diagnosis.cause) == ("failed", case.cause), diagnosis
    assert case.words in f"{diagnosis.title} {diagnosis.change}", diagnosis
    assert case.rank is None or diagnosis.rank == case.rank, diagnosis
    assert not case.host or diagnosis.host == case.host, diagnosis
