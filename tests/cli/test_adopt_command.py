# SPDX-License-Identifier: Apache-2.0
"""`harness adopt FILE > spec.yaml`: the spec on stdout, notes on stderr, exit codes."""

from __future__ import annotations

import json
import re

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
    assert result.stderr.splitlines()[-1].endswith("to be set by hand.")
    checked = run("validate-config", write("spec.yaml", result.stdout), "--world-size", "2")
    assert re.findall(r"error\[(\w+)\]: (.*)", checked.stdout) == [
        ("SP053", "`path/to/a/model` is a placeholder"),
        ("SP053", "`path/to/texts.jsonl` is a placeholder"),
    ]
    text = result.stdout.replace("path/to/a/model", "gpt2").replace("path/to/texts.jsonl", "builtin:python-docs")
    checked = run("validate-config", write("spec.yaml", text), "--world-size", "2")
    assert checked.exit_code == 0, checked.stdout


def test_another_way_of_training_is_refused_in_one_sentence(write):
    text = "model_name_or_path: a/b\nstage: ppo\nfinetuning_type: full\nlearning_rate: 1.0e-6\n"
    result = run("adopt", write("ppo.yaml", text))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error[SP040]: `stage: ppo` trains by another loss" in result.stderr
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


FACTORY = (
    "model_name_or_path: a/b\nstage: sft\nfinetuning_type: full\nbf16: true\ndo_train: true\nneftune_noise_alpha: 5\n"
)


def test_three_lists_and_their_numbers(write):
    result = run("adopt", write("t.yaml", FACTORY + "template: llama3\n"))
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines[0] == "To be set by hand:"
    assert lines.index("Trained differently from the file:") < lines.index("Without effect on what is trained:")
    assert "  `do_train: true` (line 5)" in lines
    assert any(line.startswith("Defaults that the file leaves to LLaMA-Factory: `") for line in lines)
    assert lines[-1].endswith(": 1 to be set by hand, 1 trained differently, 1 without effect.")
    assert "# To be set by hand:" in result.stdout


def test_the_spec_goes_to_a_file(write, tmp_path):
    file, spec = write("t.yaml", FACTORY), tmp_path / "spec.yaml"
    result = run("adopt", file, "-o", str(spec))
    assert (result.exit_code, result.stdout) == (0, "")
    assert spec.read_text() == run("adopt", file).stdout
    assert f"Wrote {spec}." in result.stderr
    same = run("adopt", file, "-o", file)
    assert same.exit_code == 2
    assert "is the file itself" in same.stderr


def test_a_spec_that_cannot_be_written_is_a_finding(write, tmp_path):
    refused = run("adopt", write("t.yaml", FACTORY), "-o", str(tmp_path / "nowhere" / "spec.yaml"))
    assert refused.exit_code == 2
    assert "error[RN003]" in refused.stderr
    assert "cannot be written: no such file or directory" in refused.stderr


@pytest.mark.parametrize("device", ["/dev/stdout", "/dev/null"])
def test_a_spec_goes_to_a_device(device, write):
    file = write("t.yaml", FACTORY)
    result = run("adopt", file, "-o", device)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (run("adopt", file).stdout if device == "/dev/stdout" else "")
    assert f"Wrote {device}." in result.stderr


def test_verify_compares_and_counts_and_lists(write, tmp_path):
    config = {"train_batch_size": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    write("ds.json", json.dumps(config))
    result = run("adopt", write("t.yaml", FACTORY + "deepspeed: ds.json\n"), "--verify", "--world-size", "2")
    assert result.exit_code == 0, result.stdout
    assert "zero_optimization.reduce_bucket_size: auto there only: filled in from the model's width" in result.stdout
    assert "ds.json on 2 ranks: 2 keys are the same" in result.stdout
    assert result.stderr == run("adopt", str(tmp_path / "t.yaml")).stderr
    missing = run("adopt", write("t.yaml", FACTORY), "--verify")
    assert (missing.exit_code, "nothing to compare" in missing.stdout) == (1, True)


def test_a_release_of_the_program(write):
    file = write("t.yaml", FACTORY)
    assert "max_length: 2048" in run("adopt", file).stdout
    assert "max_length" not in run("adopt", file, "--from-release", "0.9.0").stdout
    unknown = run("adopt", file, "--from-release", "0.1")
    assert unknown.exit_code == 1
    assert "name a release from 0.9.0 to 0.9.5" in unknown.stderr


@pytest.mark.parametrize(
    ("kind", "said", "is_refused"),
    [
        ("DeepSpeedCPUAdam", "`DeepSpeedCPUAdam` is a class, which DeepSpeed refuses in its JSON: AdamW is", False),
        ("FusedAdam", "`FusedAdam` is a class", False),
        ("OneBitAdam", "OP001  `OneBitAdam` is no optimizer", True),
        ("AdamW", "every key is mapped", False),
    ],
)
def test_a_spec_that_would_be_refused_is_said_to_be(kind, said, is_refused, write):
    optimizer = {"type": kind, "params": {"lr": 1e-5, "weight_decay": 0.1}}
    result = run("adopt", write("ds.json", json.dumps({**CONFIG, "train_batch_size": 8, "optimizer": optimizer})))
    assert result.exit_code == 0
    assert said in result.stderr
    assert ("The run spec has 1 error, which `harness launch` would refuse:" in result.stderr) == is_refused
    assert is_refused or "type: DeepSpeedCPUAdam" not in result.stdout


def test_four_bit_weights_of_experts_are_not_converted(write, tmp_path):
    """The run would quantize their attention alone (MD047)."""
    config = {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "num_local_experts": 4}  # fmt: skip
    folder = write("moe/config.json", json.dumps(config)).removesuffix("/config.json")
    text = f"base_model: {folder}\nadapter: qlora\nload_in_4bit: true\nmicro_batch_size: 1\nlora_r: 8\n"
    file = write("q.yaml", f"{text}datasets: [{{path: d.jsonl, type: chat_template}}]\n")
    result = run("adopt", file, "-o", str(tmp_path / "spec.yaml"))
    assert (result.exit_code, "MD047" in result.output) == (1, True)
    assert not (tmp_path / "spec.yaml").exists()
