# SPDX-License-Identifier: Apache-2.0
"""The decision on a restart by the log of our own launch, which differs from that on somebody else's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.diagnosis.decision import decide_action
from harness.launching.supervise import verdict_files
from harness.verdicts import Verdict
from tests.support.tracebacks import diagnose_text


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("[rank0]: DistNetworkError: port: 29511, name: EADDRINUSE, message: address already in use", "retry"),
        ("DistNetworkError: The client socket has failed to connect to n9:29511 (errno: 113 - No route to host).", "retry"),
        ("RuntimeError: CUDA error: invalid device ordinal", "change and retry"),
    ],
)  # fmt: skip
def test_a_restart_takes_another_port_by_itself(line, action, monkeypatch):
    diagnosis = diagnose_text(f"{line}\n")
    assert decide_action(diagnosis).action == "change and retry"
    monkeypatch.setattr(verdict_files, "diagnose_failure", lambda *_: diagnosis)
    verdict = Verdict("failed", 1, "the process crashed", crashed=True)
    advice = verdict_files.advise_restart(Path("runs/odd"), verdict)
    assert (advice.action, not advice.changes or action != "retry") == (action, True)
    assert ("another port" in advice.reason) is (action == "retry")
