"""`harness plan` from the command line: what it prints, where, and its exit codes. Needs nothing; a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build

SPEC = """\
name: small
model: {name_or_path: meta-llama/Llama-3.1-8B}
data: {train: "builtin:python-docs", max_length: 2048}
train: {max_steps: 10, per_device_train_batch_size: 1, gradient_checkpointing: true}
precision: {bf16: true}
zero: {stage: 3}
cluster: {gpu: H100, gpus_per_node: 8, host_memory: 1TB}
"""
Write = Callable[[str, str], str]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build(list(arguments)), list(arguments), catch_exceptions=False, env={"COLUMNS": "100"})


def test_a_plan_is_on_stdout_and_stderr_is_empty(write: Write) -> None:
    result = run("plan", write("small.yaml", SPEC))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("small: 8.03 B parameters in bf16, ZeRO-3")
    assert "Plan: 8 ranks, 0 errors, 0 warnings. Nothing was written and no host was contacted." in result.stdout


def test_next_repeats_what_was_asked(write: Write) -> None:
    hosts, spec = write("hosts", "a slots=8\nb slots=8\n"), write("small.yaml", SPEC)
    result = run("plan", spec, "--hostfile", hosts, "--set", "train.max_steps=5")
    last = result.stdout.strip().splitlines()[-1]
    assert last == f"Next: harness launch {spec} --set train.max_steps=5 --hostfile {hosts} --dry-run"
    assert "16 = 16 data" in result.stdout


def test_json_is_alone_on_stdout(write: Write) -> None:
    result = run("plan", write("small.yaml", SPEC), "--format", "json", "--set", "cluster.host_memory=1GB")
    body = json.loads(result.stdout)
    assert (body["fits"], body["binding_constraint"], body["world"]) == (False, "host memory", 8)
    assert "MM005" in result.stderr
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ("model.name_or_path=nobody/nothing", "MM001"),
        ("cluster.gpu=H101", "MM003"),
        ("cluster.host_memory=lots", "MM004"),
    ],
)
def test_what_is_not_known_points_at_the_key(write: Write, change: str, gate: str) -> None:
    result = run("plan", write("small.yaml", SPEC), "--set", change)
    assert result.exit_code == 0
    assert f"[{gate}]" in result.stderr
    assert f"the command line, {change}" in result.stderr


def test_errors_come_first_and_end_it(write: Write) -> None:
    result = run("plan", write("small.yaml", SPEC.replace("stage: 3", "stage: 9")))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "small.yaml:6:15" in result.stderr
    assert "Nothing was planned." in result.stderr


def test_no_file(write: Write) -> None:
    result = run("plan", "no-such-file.yaml")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_a_deepspeed_json_says_nothing_about_the_model(write: Write) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}'
    result = run("plan", write("ds.json", text), "--world-size", "4")
    assert result.exit_code == 0
    assert "a model of unknown size" in result.stdout
    assert "Next:" not in result.stdout
