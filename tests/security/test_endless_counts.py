# SPDX-License-Identifier: Apache-2.0
"""Numbers in a stranger's files that count what a command would walk through, and kernels that a model chooses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.hostinfo import model_probe
from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import SPEC, run_command

MANY = 2_000_000_011
MODEL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 259}


@Attempt(
    "I70",
    "an accelerate YAML of 2,000,000,011 processes, whose DeepSpeed JSON has `autoep_size` of one less",
    "more than 12 s: `validate-config` tries two billion divisors",
    "a finding at once: divisors come from the common one",
)
def test_endless_divisors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expert_parallel = {"enabled": True, "autoep_size": MANY - 1, "num_experts": MANY}
    Path("ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "expert_parallel": expert_parallel}))
    Path("accelerate.yaml").write_text(
        f"compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: {MANY}\nnum_machines: 1\n"
        "deepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    answer = run_command("validate-config", "accelerate.yaml").assert_unharmed()
    assert answer.code == 1
    assert f"{MANY:,}" in answer.text or str(MANY) in answer.text


@Attempt(
    "I71",
    "a hostfile of 50 hosts with 999,999 slots, for `launch --dry-run`",
    "7 s and 2.3 GB: a number in memory for each of 50 million ranks",
    "refused: more than DeepSpeed's launcher can be given (EN025)",
)
def test_endless_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("".join(f"host{n} slots=999999\n" for n in range(50)))
    Path("s.yaml").write_text(SPEC + "launch: {hostfile: hosts}\n")
    answer = run_command("launch", "s.yaml", "--dry-run").assert_unharmed()
    assert "EN025" in answer.text


@pytest.mark.parametrize(
    "config",
    [
        attempt_param(
            Attempt(
                "I72",
                "2,000,000,000 layers of a model family that `plan` builds with transformers",
                "more than 15 s of CPU time; of another family also 1.8 GB",
                "it is not built",
            ),
            {"model_type": "jamba", **MODEL, "num_hidden_layers": MANY},
        ),
        attempt_param(
            Attempt(
                "I73",
                "the same as experts, as a number with a fraction, in a part of the configuration",
                "not run",
                "it is not built",
            ),
            {"model_type": "minimax", **MODEL, "text_config": {"num_local_experts": MANY + 0.5}},
        ),
    ],
)
def test_endless_layers(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_probe, "package_version", lambda _: "1.0")
    monkeypatch.setattr(model_probe, "_run_program", lambda _: pytest.fail("it was built"))
    assert "layers or experts" in str(model_probe.probe_model(config))


@Attempt(
    "I74",
    "`attn_implementation: evil/kernel` in `model.config`, for `plan` where the package `kernels` is installed",
    "transformers requested `evil/kernel` from the Hub, to load and run it",
    "no key that chooses kernels gets there, at any level, and the process is offline",
)
def test_kernels_of_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []

    def start(_: list[str], **options: Any) -> Any:
        started.append(options)
        return subprocess.CompletedProcess([], 1, "", "")

    monkeypatch.setattr(model_probe, "package_version", lambda _: "1.0")
    monkeypatch.setattr("harness.hostinfo.model_probe.subprocess.run", start)
    choices = {"attn_implementation": "evil/kernel", "_attn_implementation": "e/k", "experts_implementation": "e/k"}
    model_probe.probe_model({"model_type": "olmoe", **MODEL, **choices, "text_config": choices, "parts": [choices]})
    (options,) = started
    assert json.loads(options["input"]) == {"model_type": "olmoe", **MODEL, "text_config": {}, "parts": [{}]}
    assert options["env"]["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    "script",
    [
        attempt_param(
            Attempt(
                "I75",
                "a script for `adopt` with a word of a million characters",
                "more than 12 s",
                "the command is cut",
            ),
            "swift sft --model " + "$" * 1_000_000,
        ),
        attempt_param(
            Attempt(
                "I76", "500,000 values of one option in a script for `adopt`", "more than 12 s", "the command is cut"
            ),
            "swift sft --dataset" + " a" * 500_000,
        ),
        attempt_param(
            Attempt("I77", "a million open `${A:-` in a script for `adopt`", "not run", "each is looked at once"),
            "X=" + "${A:-" * 1_000_000 + "\nswift sft --model $X",
        ),
        attempt_param(
            Attempt(
                "I78",
                "1,000 options that a script for `adopt` writes nowhere as they are, and four million characters",
                "not run",
                "it looks for their places among the next 20,000 characters",
            ),
            "swift sft " + " ".join(f"'--'a{n} 1" for n in range(1_000)) + "\n" + "echo a\n" * 600_000,
        ),
    ],
)
def test_endless_scripts(script: str, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(script)
    run_command("adopt", file).assert_unharmed()
