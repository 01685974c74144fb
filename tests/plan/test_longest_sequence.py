# SPDX-License-Identifier: Apache-2.0
"""`harness plan --longest` and `--largest-model`, held against the plan of what they name. Seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.errors import ExitCode
from harness.facts.model_catalogue import CATALOGUE
from harness.facts.model_lookup import find_positions
from harness.plan.search.sequence_lengths import largest_number

SPEC = """\
name: small
model: {name_or_path: meta-llama/Llama-3.2-1B}
data: {train: "builtin:python-docs", max_length: 2048%s}
train: {max_steps: 10, per_device_train_batch_size: 2, global_batch_size: 16, gradient_checkpointing: true}
precision: {bf16: true}
zero: {stage: 3}
cluster: {gpu: %s, gpus_per_node: 4, host_memory: 400GB}
"""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(list(arguments)), list(arguments), env={"COLUMNS": "110"})


def plan_at(file: str, length: int) -> dict[str, Any]:
    return json.loads(run("plan", file, "--set", f"data.max_length={length}", "--format", "json").stdout)


@pytest.mark.parametrize(
    ("extra", "gpu", "unit"),
    [("", "A100-40GB", 1024), (", pad_to_multiple_of: 64", "RTX4090-24GB", 64), ("", "H100", 1024)],
)
def test_the_plan_says_that_it_fits_and_that_one_unit_more_does_not(
    tmp_path: Path, extra: str, gpu: str, unit: int
) -> None:
    spec, found = tmp_path / "small.yaml", str(tmp_path / "long.yaml")
    spec.write_text(SPEC % (extra, gpu), encoding="utf-8")
    body = json.loads(run("plan", str(spec), "--longest", "--format", "json", "--write", found).stdout)
    length = body["max_length"]
    assert (body["multiple_of"], length % unit) == (unit, 0)
    here, beyond = plan_at(found, length), plan_at(found, length + unit)
    assert here["headroom"] >= 0 > beyond["headroom"]  # by the middle of the estimate, inside whose range both are
    assert (here["fits"], beyond["fits"]) == (None, None)
    assert beyond["binding_constraint"] == body["limited_by"]
    assert here["gpu_peak_bytes"] == body["gpu_peak_bytes"]
    assert here["step_seconds_range"] == body["step_seconds_range"]
    safe = plan_at(found, body["max_length_with_headroom"])
    assert safe["headroom"] >= 0.05
    assert yaml.safe_load(Path(found).read_text(encoding="utf-8"))["train"]["per_device_train_batch_size"] == 1


def test_no_other_setting_reaches_further(tmp_path: Path) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(SPEC % ("", "A100-40GB"), encoding="utf-8")
    body = json.loads(run("plan", str(spec), "--longest", "--format", "json").stdout)
    assert len(body["others"]) > 5
    assert all(each["max_length"] <= body["max_length"] for each in body["others"])
    assert len({each["settings"] for each in body["others"]}) == len(body["others"])


def test_the_models_positions_are_named_where_they_are_below() -> None:
    found = run(*"plan --model llama-3.1-8b --longest --gpus 8 --gpu H100 --host-memory 1800GiB".split())
    assert found.exit_code == 0
    assert "made for 131,072 positions" in found.stdout
    text = " ".join(found.stdout.split())
    assert re.search(r"Limited by GPU memory: [\d,]+ tokens need \S+ GiB of \S+ GiB; the most is \S+ GiB \w", text)
    assert "sequence 8" in found.stdout


def test_a_table_of_positions_limits_the_length() -> None:
    body = json.loads(run(*"plan --model gpt2 --longest --gpus 1 --gpu H100 --format json".split()).stdout)
    assert (body["max_length"], body["limited_by"]) == (1024, "the model's positions")


def test_adapters_have_a_longest_sequence_too() -> None:
    asked = ("size", "--model", "gpt2", "--longest", "--gpus", "1", "--gpu", "RTX4090-24GB", "--host-memory", "100GB")
    result = run(*asked, "--lora", "--format", "json")
    assert json.loads(result.stdout)["max_length"] == 1024  # settings of adapters had no hash, and no answer


def test_nothing_fits_is_exit_code_1() -> None:
    found = run(*"plan --model llama-3.1-405b --longest --gpus 1 --gpu RTX4090 --host-memory 64GB".split())
    assert found.exit_code == ExitCode.FINDINGS
    assert "however short the sequences" in found.stdout


def test_the_largest_model_fits_and_the_next_larger_one_does_not() -> None:
    cluster = "--gpus 8 --gpu H100 --host-memory 1800GiB".split()
    body = json.loads(run("plan", "--largest-model", *cluster, "--format", "json").stdout)
    assert body["model"] == "Qwen/Qwen3-Next-80B-A3B-Instruct"
    sizes = [each["num_parameters"] for each in body["fitting"]]
    assert sizes == sorted(sizes, reverse=True)
    next_larger = body["too_large"][-1]
    assert next_larger["num_parameters"] > sizes[0]
    search = json.loads(run("plan", "--model", next_larger["model"], *cluster, "--format", "json").stdout)
    assert search["search"]["chosen"] is None


@pytest.mark.parametrize("number", [0, 1, 7, 8, 100])
def test_the_largest_number(number: int) -> None:
    asked = []

    def holds(value: int) -> bool:
        asked.append(value)
        return value <= number

    assert largest_number(holds, 100) == number
    assert len(asked) <= 15
    assert max(asked) <= 100


def test_positions_of_the_catalogue() -> None:
    known = {name: find_positions(name, None) for name in CATALOGUE}
    assert known["meta-llama/Llama-3.1-8B"] == 131072
    assert known["meta-llama/Meta-Llama-3-8B"] == 8192
    assert known["openai-community/gpt2-xl"] == 1024
    assert find_positions("x/y", {"max_position_embeddings": 77}) == 77
    unknown = [name for name, positions in known.items() if positions is None]
    assert "deepseek-ai/DeepSeek-R1-Distill-Llama-70B" in unknown
    assert len(unknown) < len(known) / 2
