# SPDX-License-Identifier: Apache-2.0
"""`harness explain --log` from the command line: exit codes, JSON, `--redact`. Needs nothing; seconds."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from tests.diagnosis.reader.test_log_facts import printed
from tests.support.tracebacks import traceback_text

KNOWN = "[rank0]: AssertionError: You are using an untested ZeRO Optimizer\n"
UNKNOWN = "[rank0]: RuntimeError: nobody knows this one\n"
ENDED_WELL = "[INFO] [launch.py:351:main] Process 7 exits successfully.\n"
STOPPED = "[INFO] [launch.py:319:sigkill_handler] Main process received SIGTERM, exiting\n"
UNREAD = {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, "train_batch_size": 8}
CONFIG = {
    "optimizer": {"type": "RMSprop", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2},
    "train_batch_size": 8,
}


def explain(*arguments: str, text: str | bytes | None = None, columns: int = 120):
    return CliRunner().invoke(
        build_app(["explain"]), ["explain", "--log", *arguments], input=text, env={"COLUMNS": str(columns)}
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [(ENDED_WELL, 0), (KNOWN, 1), (UNKNOWN, 6), ("all is quiet\n", 7), ("", 2), (b"\x1f\x8b\0\0\0" * 50, 2)],
    ids=["completed", "failed", "unknown", "no failure", "empty", "binary"],
)
@pytest.mark.parametrize("options", [(), ("--format", "json"), ("--redact",)])
def test_exit_codes(text, code, options):
    result = explain("-", *options, text=text)
    assert result.exit_code == code, result.output


def test_the_codes_are_in_the_help():
    text = " ".join(CliRunner().invoke(build_app(["explain"]), ["explain", "--help"]).output.replace("│", " ").split())
    assert "0 the job ended well or was asked to stop, 1 it failed and the cause is known, 2 no file" in text
    assert "6 it failed and the cause is unknown, 7 the log shows no failure" in text


def test_the_fields_of_the_json():
    frames = [("/x/train.py", "main", "go()"), ("deepspeed/runtime/engine.py", "backward", "x")]
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    log = f"DeepSpeed info: version=0.16.4, x\n{printed(UNREAD)}***** Running training *****\n"
    answer = json.loads(explain("-", "--format", "json", text=log + traceback_text(frames, error, 2)).stdout)
    assert answer["format_version"] == 1
    assert answer["phase"] == {
        "name": "first step",
        "text": "in the first step, in the backward pass",
        "step": None,
        "source": "traceback",
    }
    assert answer["allocation"]["name"] == "backward"
    assert answer["second_opinion"]["findings"][0]["gate"] == "OF001"
    assert answer["second_opinion"]["agrees"] is False
    assert answer["versions"] == {"deepspeed": "0.16.4"}
    assert answer["releases"] is None
    assert {
        "state",
        "confidence",
        "cause",
        "title",
        "message",
        "rank",
        "host",
        "where",
        "line",
        "change",
    } <= answer.keys()


@pytest.mark.parametrize("columns", [80, 120])
def test_an_answer_fits_on_a_screen(columns):
    frames = [("/x/train.py", "main", "go()"), ("deepspeed/runtime/engine.py", "backward", "x")]
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    log = f"DeepSpeed info: version=0.16.4, x\n{printed(UNREAD)}***** Running training *****\n"
    lines = explain("-", text=log + traceback_text(frames, error, 2), columns=columns).stdout.splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= columns
    rows = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].isalpha()]
    assert rows[:6] == ["cause", "said", "at", "phase", "allocating", "change"]


def test_redact_is_for_everything_that_is_printed(tmp_path):
    log = tmp_path / "job.log"
    log.write_text(
        "gpu-17: [rank9]: Traceback (most recent call last):\n"
        'gpu-17: [rank9]:   File "/home/alice/acme/train.py", line 12, in <module>\n'
        "gpu-17: [rank9]: PermissionError: [Errno 13] Permission denied: "
        "'/home/alice/acme/hf_abcdefghijklmnopqrstuvwxyz'\n",
        encoding="utf-8",
    )
    for options in ((), ("--format", "json")):
        plain, redacted = (explain(str(log), *options, *more).stdout for more in ((), ("--redact",)))
        for secret in ("gpu-17", "alice", "acme", "hf_abc"):
            assert secret in plain
            assert secret not in redacted
        assert "host-1" in redacted
        assert "PermissionError" in redacted


def test_a_file_beside_the_log_is_checked(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    log = tmp_path / "job.log"
    log.write_text(f"cmd = python train.py --deepspeed ds.json\n{KNOWN}", encoding="utf-8")
    output = explain(str(log)).stdout
    assert "`harness validate-config` finds the same mistake, OP011, in `ds.json` as it is now" in output


def test_more_names_are_further_logs(tmp_path):
    """What a shell makes of `--log *.log`."""
    (tmp_path / "a.log").write_text("all is quiet\n", encoding="utf-8")
    (tmp_path / "b.log").write_text(KNOWN, encoding="utf-8")
    result = explain(str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    assert result.exit_code == 1, result.output
    assert "b.log:1" in result.output
    assert "2 lines read" in result.output


def test_a_log_without_the_option_is_named_with_it(tmp_path):
    (tmp_path / "job.log").write_text(KNOWN, encoding="utf-8")
    result = CliRunner().invoke(build_app(["explain"]), ["explain", str(tmp_path / "job.log")], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"`harness explain --log {tmp_path / 'job.log'}`" in result.output


def test_redact_needs_a_log():
    result = CliRunner().invoke(build_app(["explain"]), ["explain", "OP011", "--redact"])
    assert result.exit_code == 2
    assert "--log" in result.output


def test_one_line_is_no_plural():
    assert "1 line read" in explain("-", text="all is quiet\n").output
