# SPDX-License-Identifier: Apache-2.0
"""`prepare`: a launch request becomes a launch setup or a rejection. It prints nothing and writes nothing. Seconds."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.findings import Finding, LinesOf
from harness.hostinfo.machine import Accelerator, HostMemory
from harness.hostinfo.training_packages import PACKAGES
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
    (warning,) = (warning for warning in log.warnings if warning.gate == "HO005")
    assert "the hosts have 4 slots" in warning.message
    assert "no earlier checkpoint, starting from step 0" in log.notes


def test_a_taken_port_is_said_before_a_rank_starts(spec):
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        log, setting = RecordedLog(), f"launch.master_port={port}"
        assert isinstance(prepare(LaunchRequest(spec, (setting,), dry_run=True), log), LaunchSetup)
        (warning,) = (warning for warning in log.warnings if warning.gate == "HO018")
        assert str(port) in warning.message
        assert "leave it out" in warning.fix.title
        log = RecordedLog()
        prepare(LaunchRequest(spec, (setting, "ignore={HO018: mine}"), dry_run=True), log)
        assert "HO018" not in {warning.gate for warning in log.warnings}
    log = RecordedLog()
    prepare(LaunchRequest(spec, (setting,), dry_run=True), log)
    assert "HO018" not in {warning.gate for warning in log.warnings}


@pytest.mark.parametrize(
    ("gpu", "devices", "is_refused"),
    [("H100", (), True), ("cpu", (), False), (None, (), False), ("H100", ("NVIDIA H100",), False)],
    ids=str,
)
def test_a_spec_for_gpus_on_a_machine_without_one_is_refused(gpu, devices, is_refused, spec, monkeypatch):
    """In a dry run it is a warning; DS_ACCELERATOR=cpu is a choice."""
    accelerators = tuple(Accelerator(index, name, None) for index, name in enumerate(devices))
    monkeypatch.setattr("harness.hostinfo.machine.accelerators", lambda: accelerators)
    if not devices:
        monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    overrides = () if gpu is None else (f"cluster.gpu={gpu}",)
    log = RecordedLog()
    assert isinstance(prepare(LaunchRequest(spec, overrides, dry_run=True), log), LaunchSetup)
    assert ("EN027" in {warning.gate for warning in log.warnings}) is is_refused
    if not devices:
        result = prepare(LaunchRequest(spec, overrides), RecordedLog())
        assert ([f.gate for f in getattr(result, "findings", ()) if f.is_error] == ["EN027"]) is is_refused
        monkeypatch.setenv("DS_ACCELERATOR", "cpu")
        assert isinstance(prepare(LaunchRequest(spec, overrides), RecordedLog()), LaunchSetup)


def test_a_refused_launch_says_too_that_the_host_has_less_memory_than_the_plan(spec, monkeypatch):
    monkeypatch.setattr("harness.hostinfo.machine.accelerators", lambda: ())
    monkeypatch.setattr("harness.hostinfo.machine.host_memory", lambda: HostMemory(1 << 24, 1 << 24))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    result = prepare(LaunchRequest(spec, ("cluster.gpu=H100",)), RecordedLog())
    assert isinstance(result, LaunchRejected)
    host, gpu = sorted(finding.message for finding in result.findings if finding.gate == "EN027")[::-1]
    assert host.startswith("this host needs ")
    assert host.endswith("this machine has 16.00 MiB")
    assert "find no GPU" in gpu


@pytest.mark.parametrize("package", ["deepspeed", "torch", "transformers", "accelerate"])
@pytest.mark.parametrize(("version", "is_told"), [("99.1.0", True), ("TESTED.0+cpu", False), (None, False)])
def test_an_untested_release_is_one_line(package, version, is_told, spec, monkeypatch):
    from harness.facts import tested_releases

    found = version and version.replace("TESTED.0", tested_releases.TESTED_RELEASES[package][0])
    monkeypatch.setattr(tested_releases, "find_version", lambda name: found if name == package else None)
    log = RecordedLog()
    assert isinstance(prepare(LaunchRequest(spec, dry_run=True), log), LaunchSetup)
    lines = [note for note in log.notes if "untested" in note]
    assert len(lines) == int(is_told)
    if is_told:
        assert lines[0].startswith(f"note: {package} 99.1.0 is untested, the harness was tested with ")


def test_a_path_that_this_machine_lacks_ends_a_launch_before_anything_is_written(spec, tmp_path):
    wrong = ("data.train=nowhere/*.jsonl", "model.tokenizer=./tokenizer")
    for dry_run in (True, False):
        rejected = prepare(LaunchRequest(spec, wrong, dry_run=dry_run), RecordedLog())
        assert isinstance(rejected, LaunchRejected)
        assert [(f.gate, f.severity) for f in rejected.findings] == [("SP050", "error")] * 2
        assert rejected.code is ExitCode.FINDINGS
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_rejection_tells_missing_packages_and_a_wrong_resume_path_in_the_same_pass(spec, monkeypatch):
    monkeypatch.setattr("harness.check.missing_software.find_spec", {}.get)
    wrong = ("data.train=nowhere/*.jsonl", "telemetry.trackers=[wandb]")
    installed: dict[str, str] = {}
    monkeypatch.setattr("harness.hostinfo.machine.package_version", installed.get)
    cases = [(False, {}, "error"), (True, {}, "warning"), (True, dict.fromkeys(PACKAGES, "1"), "error")]
    for dry_run, packages, severity in cases:
        installed |= packages
        rejected = prepare(LaunchRequest(spec, wrong, resume="runs/nowhere", dry_run=dry_run), RecordedLog())
        assert isinstance(rejected, LaunchRejected)
        assert {(f.gate, f.severity) for f in rejected.findings} >= {
            ("SP050", "error"),
            ("EN016", severity),
            ("CK001", "error"),
        }


def test_hosts_may_have_what_the_launching_machine_lacks(spec):
    log = RecordedLog()
    request = LaunchRequest(spec, ("data.train=nowhere/*.jsonl",), hosts=HostSelection(hosts="a:1,b:1"), dry_run=True)
    setup = prepare(request, log)
    assert not isinstance(setup, LaunchRejected) or "SP050" not in {f.gate for f in setup.findings}
    assert [f.severity for f in log.warnings if f.gate == "SP050"] == ["info"]


def test_ranks_get_the_paths_next_to_the_spec(spec, tmp_path):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "text.txt").write_text("text")
    (tmp_path / "specs" / "tiny.yaml").write_text(SPEC.replace("builtin:python-docs", "text.txt"))
    setup = prepare(LaunchRequest("specs/tiny.yaml", dry_run=True), RecordedLog())
    assert isinstance(setup, LaunchSetup)
    assert '"path": "specs/text.txt"' in setup.plan.documents["spec.resolved.json"]
    assert 'train: "text.txt"' in setup.plan.documents["spec.yaml"], "as the user wrote it"


def test_a_similar_name_is_suggested_for_a_resume(spec, tmp_path):
    (tmp_path / "runs" / "tiny-1").mkdir(parents=True)
    rejected = prepare(LaunchRequest(spec, resume="run/tiny-1", dry_run=True), RecordedLog())
    assert isinstance(rejected, LaunchRejected)
    assert rejected.findings[0].fix.title == "did you mean `runs/tiny-1`?"


@pytest.mark.parametrize(
    ("nodes", "more", "is_said"),
    [
        (2, (), True),
        (1, (), False),
        (2, ("launch.bind_cores_to_rank=true",), False),
        (2, ("zero.offload_optimizer=null",), False),
        (2, ("ignore={EN053: measured}",), False),
    ],
    ids=str,
)
def test_one_host_of_several_nodes_is_told_of_binding(nodes, more, is_said, spec, monkeypatch):
    """As preflight tells it of several hosts."""
    monkeypatch.setattr("harness.hostinfo.machine.count_numa_nodes", lambda: nodes)
    log = RecordedLog()
    offload = ("zero.stage=3", "optimizer.type=adamw", "zero.offload_optimizer={device: cpu}")
    prepare(LaunchRequest(spec, (*offload, *more), dry_run=True), log)
    said = [finding for finding in log.warnings if finding.gate == "EN053"]
    assert [finding.severity for finding in said] == ["info"] * is_said
