# SPDX-License-Identifier: Apache-2.0
"""`harness adopt FILE > spec.yaml`: the spec on stdout, notes on stderr, exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app


def run(*arguments, stdin=None):
    return CliRunner().invoke(build_app(list(arguments)), list(arguments), input=stdin)


CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "cpu_offload": True},
}


def test_the_spec_is_valid_and_the_notes_are_beside_it(write):
    result = run(
        "adopt", write("ds.json", json.dumps({**CONFIG, "gradient_clipping": "auto", "fp16": {"enabled": "auto"}}))
    )
    assert result.exit_code == 0
    assert "ds.json:1: `fp16.enabled` is" in result.stderr
    assert "not mapped, or set to a default." in result.stderr
    checked = run("validate-config", write("spec.yaml", result.stdout), "--world-size", "2")
    assert checked.exit_code == 0, checked.stdout


def test_another_way_of_training_is_refused_in_one_sentence(write):
    text = "model_name_or_path: a/b\nstage: dpo\nfinetuning_type: full\nlearning_rate: 1.0e-6\n"
    result = run("adopt", write("dpo.yaml", text))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error[SP040]: `stage: dpo` trains by another loss" in result.stderr
    assert result.stderr.endswith("Nothing was converted.\n")
    assert "has no place" not in result.stderr


def test_standard_input():
    result = run("adopt", "-", stdin=json.dumps(CONFIG))
    assert result.exit_code == 0
    assert "  device: cpu" in result.stdout
    assert result.stdout.startswith("# A run spec of standard input")


def test_the_release_decides_what_is_meant(write):
    file = write("ds.json", json.dumps(CONFIG))
    assert "pin_memory: true" in run("adopt", file, "--deepspeed-version", "0.19.8").stdout
    assert "pin_memory: false" in run("adopt", file, "--deepspeed-version", "0.19.4").stdout
    assert "max_grad_norm: 0.0" in run("adopt", file, "--deepspeed-version", "0.19.2").stdout


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [("ds.json", '{"train_batch_size": 1, "bf_16": {}}', 1), ("ds.json", "{", 1), ("spec.yaml", "zero: {stage: 1}\n", 1), ("none.json", None, 2)],
)  # fmt: skip
def test_what_cannot_be_adopted(name, text, code, write, tmp_path):
    result = run("adopt", write(name, text) if text is not None else str(tmp_path / name))
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Nothing was converted." in result.stderr
