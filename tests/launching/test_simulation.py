# SPDX-License-Identifier: Apache-2.0
"""Refusals of the simulation before its process is started."""

from __future__ import annotations

import pytest

from harness.errors import ExitCode, UserError
from harness.launching.programs import simulation
from harness.plan.simulation.request import SimulationRequest


@pytest.mark.parametrize(
    ("torch", "words"), [("2.10.0+cu128", "torch 2.10.0+cu128 is older than 2.13"), (None, "torch not installed")]
)
def test_a_torch_that_cannot_simulate_is_named(monkeypatch: pytest.MonkeyPatch, torch: str | None, words: str) -> None:
    versions = {"torch": torch}
    monkeypatch.setattr(simulation.machine, "package_version", lambda name: versions.get(name, "1.0"))
    monkeypatch.setattr(simulation, "_run_worker", lambda *_: pytest.fail("it was started"))
    with pytest.raises(UserError, match="no GPU can be simulated here") as caught:
        simulation.simulate_rank(SimulationRequest({}, 0, 1, 1), print)
    assert caught.value.code == ExitCode.PREFLIGHT
    assert words in str(caught.value)
