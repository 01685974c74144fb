# SPDX-License-Identifier: Apache-2.0
"""`harness plan --params`, `--network` and `--gradients`: the table and its JSON, and where the options are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.errors import UserError


def run(text: str) -> Any:
    arguments = ["plan", *text.split()]
    return CliRunner().invoke(build_app(arguments), arguments, catch_exceptions=False, env={"COLUMNS": "110"})


def test_the_table_has_kinds_of_states_and_what_is_sent_beside_ddp() -> None:
    rows = {line[2:8]: line.split() for line in run("--params 70e9 --gpus 256").stdout.splitlines() if "ZeRO-" in line}
    assert rows["ZeRO-3"] == ["ZeRO-3", "4.38", "0.55", "0.55", "3.28", "418.36", "1.50"]
    assert rows["ZeRO-0"][-2:] == ["278.91", "1.00"]


def test_the_json_has_the_seconds_of_an_all_reduce() -> None:
    body = json.loads(run("--params 7e9 --gpus 8 --network 200Gb/s --gradients fp32 --format json").stdout)
    assert body["network_bytes_per_second"] == 25e9
    assert body["by_stage"]["0"]["seconds"] == pytest.approx(1.96)
    assert body["by_stage"]["3"]["of_ddp"] == pytest.approx(1.0)


def test_degrees_and_words_and_a_spec_take_the_rate_of_the_network() -> None:
    degrees = (
        "--model llama-2-7b --gpus 16 --gpu A100-80GB --tensor 1 --zero-stage 0 --checkpointing full --format json"
    )
    slow = json.loads(run(f"{degrees} --gradients bf16 --network 12.5GB/s").stdout)["parts"]
    fast = json.loads(run(f"{degrees} --gradients bf16 --network 25GB/s").stdout)["parts"]
    whole = json.loads(run(f"{degrees} --network 25GB/s").stdout)["parts"]
    seconds = [next(part["seconds"] for part in parts if part["name"] == "gradients") for parts in (slow, fast, whole)]
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=1e-3)
    assert seconds[2] == pytest.approx(2 * seconds[1], rel=1e-3)
    words = "--model llama-2-7b --gpus 16 --gpu A100-80GB --zero-stage 0 --format json --network"
    rows = [json.loads(run(f"{words} {rate}").stdout)["traffic"][0] for rate in ("200Gb/s", "25GB/s", "50GB/s")]
    assert rows[0] == rows[1]
    assert rows[0]["seconds"] == pytest.approx(2 * rows[2]["seconds"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--params 7e9 --network fast", "`--network`: `fast` is not a rate"),
        ("--params 7e9 --network 200", "`--network`: `200` is 200 bytes a second"),
        ("--model llama-2-7b --gpus 16 --gpu A100-80GB --tensor 1 --network 200", "`200` is 200 bytes a second"),
        ("--model llama-2-7b --gpus 16 --gpu A100-80GB --network 200b/s", "`200b/s` is 200 bytes a second"),
        ("--params 7e9 --gradients int8", "`--gradients int8` is not one of"),
        ("--table --network 1GB/s", "`--network` has no effect"),
        ("--model llama-2-7b --gpus 8 --gpu A100 --gradients bf16", "goes with degrees of parallelism"),
    ],
)
def test_a_wrong_word_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(text)
    assert message in caught.value.findings[0].message


def test_degrees_have_failures_and_hours_with_them() -> None:
    words = "--model llama-3.1-405b --gpus 16384 --gpu H100-80GB --tensor 8 --pipeline 16 --batch-tokens 16777216"
    words += " --checkpointing full --tokens 15.6e12 --price 2"
    body = json.loads(run(f"{words} --format json").stdout)
    assert body["checkpoint"]["failure_seconds"] == pytest.approx(50_700 * 3600 / 16384)
    assert body["gpu_hours_with_failures"] == pytest.approx(body["gpu_hours"] / (1 - body["checkpoint"]["lost"]))
    text = run(words).stdout
    assert "a failure of one of 16,384 GPUs every 3 h 05 min" in text
    assert "with saves and failures" in text
