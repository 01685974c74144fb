# SPDX-License-Identifier: Apache-2.0
"""The gates on the configuration that a log contains or names. Needs nothing; a second."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.check import log_opinion
from harness.check.log_opinion import review_config
from tests.diagnosis.reader.test_log_facts import printed
from tests.support.tracebacks import diagnose_text

UNTESTED = {
    "optimizer": {"type": "RMSprop", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2},
    "train_batch_size": 8,
    "bf16": {"enabled": False},
}
REFUSED = "[rank0]: AssertionError: You are using an untested ZeRO Optimizer\n"
ODD = "[rank0]: RuntimeError: nobody knows this one\n"
INFO = "DeepSpeed info: version=0.16.4, git-hash=unknown\n"


def review(text: str, *folders: Path):
    return review_config(diagnose_text(text), list(folders) or [Path("/nonexistent")])


def test_the_printed_configuration_agrees():
    diagnosis, opinion = review(INFO + printed(UNTESTED) + REFUSED)
    assert opinion is not None
    assert opinion.agrees
    assert opinion.findings[0].gate == diagnosis.cause == "OP011"
    assert opinion.deepspeed == "0.16.4 (the log shows it)"
    assert diagnosis.confidence == "certain"


def test_a_likely_cause_that_the_gates_find_too_is_certain():
    likely = replace(diagnose_text(printed(UNTESTED) + REFUSED), confidence="likely")
    assert review_config(likely, [])[0].confidence == "certain"
    other = replace(likely, cause="OP001")
    assert review_config(other, [])[0].confidence == "likely"


UNREAD = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
    "train_batch_size": 8,
    "bf16": {"enabled": False},
}


def test_other_findings_are_printed_and_never_become_the_cause():
    diagnosis, opinion = review(printed(UNREAD) + ODD)
    assert (diagnosis.cause, diagnosis.confidence) == ("", "unknown")
    assert opinion is not None
    assert not opinion.agrees
    assert [f.gate for f in opinion.findings] == ["OF001"]
    assert "the log shows it" not in opinion.deepspeed


def test_what_the_log_itself_refutes_is_not_printed():
    """DeepSpeed prints its JSON when the engine is built: it did not refuse the optimizer, nor a key."""
    assert review(printed({**UNTESTED, "zero_optimization": {"stage": 2, "odd": 1}}) + ODD)[1] is None


def test_at_most_five_and_errors_first(tmp_path):
    wrong = {**UNTESTED, **{f"key_{i}": 1 for i in range(9)}, "fp16": {"enabled": True}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(wrong), encoding="utf-8")
    _, opinion = review(f"cmd = python train.py --deepspeed ds.json\n{ODD}", tmp_path)
    assert opinion is not None
    assert len(opinion.findings) == 5
    assert opinion.num_more > 0
    severities = [finding.severity for finding in opinion.findings]
    assert severities == sorted(severities)


def test_a_release_decides_which_gates_run():
    config = {
        **UNREAD,
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
        "comms_logger": {"enabled": False},
    }
    old, new = (
        review(f"DeepSpeed info: version={v}, git-hash=x\n{printed(config)}{ODD}")[1] for v in ("0.14.5", "0.19.8")
    )
    assert old is not None
    assert new is not None
    assert (old.deepspeed, new.deepspeed) == ("0.14.5 (the log shows it)", "0.19.8 (the log shows it)")


def test_a_log_without_a_configuration():
    assert review(ODD)[1] is None
    assert review("")[1] is None


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "ds.json").write_text(json.dumps(UNTESTED), encoding="utf-8")
    return folder


def test_a_file_below_the_folder(config):
    _, opinion = review(f"cmd = python train.py --deepspeed ds.json\n{ODD}", config)
    assert opinion is not None
    assert opinion.source == "`ds.json` as it is now"
    assert [finding.gate for finding in opinion.findings] == ["OP011"]


def test_an_absolute_path(config):
    assert review(f"cmd = python train.py --deepspeed {config / 'ds.json'}\n{ODD}")[1] is not None


def test_files_that_are_not_read(config, tmp_path):
    (tmp_path / "outside.json").write_text(json.dumps(UNTESTED), encoding="utf-8")
    (config / "link.json").symlink_to(tmp_path / "outside.json")
    (config / "secret.json").write_text('{"password": "hunter2"}', encoding="utf-8")
    (config / "folder.json").mkdir()
    os.mkfifo(config / "pipe.json")
    (config / "huge.json").write_text("{" + " " * (2 << 20) + "}", encoding="utf-8")
    names = [
        "../outside.json",
        "link.json",
        "secret.json",
        "folder.json",
        "pipe.json",
        "huge.json",
        "missing.json",
        "/dev/zero.json",
    ]
    for name in names:
        assert review(f"cmd = python train.py --deepspeed {name}\n{ODD}", config)[1] is None, name


@pytest.mark.parametrize(
    "text", ['{"a": ' * 500 + "1" + "}" * 500, '{"a": [1, 2\n', '{"train_batch_size": 1e999}', "{}"]
)
def test_a_hostile_configuration(text):
    log = f"x json = {text}\n}}\n{ODD}"
    diagnosis, opinion = review(log)
    assert diagnosis.state == "failed"
    assert opinion is None or len(opinion.findings) <= 5


def test_a_check_that_raises_leaves_the_diagnosis(monkeypatch):
    def fail(*_names: object, **_options: object) -> None:
        raise TypeError("a fault of a check")

    monkeypatch.setattr(log_opinion, "check_file", fail)
    diagnosis, opinion = review(printed({"train_batch_size": 8}) + "RuntimeError: CUDA error: out of memory\n")
    assert (diagnosis.cause, opinion) == ("LG001", None)
