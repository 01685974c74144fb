# SPDX-License-Identifier: Apache-2.0
"""`prepare`: a launch request becomes a launch setup or a rejection. It prints nothing and writes nothing. Seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.findings import Finding, LinesOf
from harness.launching.setup.launch_request import LaunchRejected, LaunchRequest, LaunchSetup
from harness.launching.setup.prepare import prepare
from harness.spec.host_selection import HostSelection

SPEC = """\
name: tiny
model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}, tokenizer: bytes}
data: {train: "builtin:python-docs", max_length: 32}
train: {max_steps: 2, per_device_train_batch_size: 1}
optimizer: {type: sgd}
"""


class RecordedLog:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[Finding] = []
        self.lines_of: list[LinesOf | None] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_findings(self, findings: Sequence[Finding], lines_of: LinesOf | None) -> None:
        self.warnings += findings
        self.lines_of.append(lines_of)


@pytest.fixture
def spec(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    Path("tiny.yaml").write_text(SPEC)
    return "tiny.yaml"


def test_a_setup_has_the_plan_and_the_files_of_the_run_directory(spec, tmp_path, capfd):
    request = LaunchRequest(spec, hosts=HostSelection(num_gpus=2), dry_run=True)
    setup = prepare(request, RecordedLog())
    assert isinstance(setup, LaunchSetup)
    assert setup.plan.world_size == 2
    assert setup.plan.documents["overrides.txt"] == "launch.num_gpus=2\n"
    assert setup.plan.documents["spec.yaml"] == SPEC
    assert setup.run.tuned_defaults is not None
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
    assert capfd.readouterr() == ("", "")


def test_without_a_number_the_ranks_are_those_of_this_machine(spec):
    setup = prepare(LaunchRequest(spec, dry_run=True), RecordedLog())
    assert isinstance(setup, LaunchSetup)
    assert setup.plan.world_size == (setup.local_host.num_accelerators or 1)


def test_a_rejection_has_the_findings_and_the_exit_code(spec, capfd):
    rejected = prepare(LaunchRequest(spec, hostfile="nosuch.txt"), RecordedLog())
    assert isinstance(rejected, LaunchRejected)
    assert (rejected.code, rejected.findings[0].gate) == (ExitCode.USAGE, "HO001")
    assert rejected.report is not None
    assert rejected.lines_of is not None
    rejected = prepare(LaunchRequest(spec, ("zero.stage=7",)), RecordedLog())
    assert isinstance(rejected, LaunchRejected)
    assert rejected.code is ExitCode.FINDINGS
    rejected = prepare(LaunchRequest(spec, resume="nowhere", dry_run=True), RecordedLog())
    assert isinstance(rejected, LaunchRejected)
    assert (rejected.findings[0].gate, rejected.report) == ("CK001", None)
    assert capfd.readouterr() == ("", "")


def test_notes_and_warnings_go_to_the_log(spec):
    Path("hosts").write_text("worker-0 slots=2\nworker-1 slots=2\n")
    log = RecordedLog()
    request = LaunchRequest(spec, ("launch.num_gpus=3",), hostfile="hosts", resume="auto", dry_run=True)
    assert isinstance(prepare(request, log), LaunchSetup)
    assert "HO005" in {warning.gate for warning in log.warnings}
    assert "no earlier checkpoint, starting anew" in log.notes
