# SPDX-License-Identifier: Apache-2.0
"""`harness degrees`, and the tables of states of `harness size`: what it prints, and exit codes. A few seconds."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.errors import ExitCode, UserError

LLAMA = (
    *("--model", "llama-3.1-405b", "--gpus", "16384", "--gpu", "H100-80GB", "--tensor", "8", "--pipeline", "16"),
    *("--virtual-stages", "8", "--batch-tokens", "16777216", "--max-length", "8192", "--checkpointing", "selective"),
)
SMALL = ("--model", "llama-3.1-8b", "--gpus", "64", "--gpu", "H100-80GB")


def run(*arguments: str) -> Any:
    """An option that is there twice has its last value."""
    words = list(arguments)
    for index in range(len(words) - 1, -1, -1):
        if words[index].startswith("--") and words[index] in words[index + 1 :]:
            del words[index : index + 2]
    arguments = tuple(words)
    command = "size" if {"--table", "--params", "--non-state-peak"} & {*arguments} else "degrees"
    return CliRunner().invoke(build_app([command]), [command, *arguments], catch_exceptions=False)


def refuse(*arguments: str) -> Any:
    """The one finding of a call that is refused."""
    with pytest.raises(UserError) as refused:
        run(*arguments)
    (finding,) = refused.value.findings
    assert refused.value.code == ExitCode.USAGE
    return finding


def test_llama_405b_in_words() -> None:
    result = run(*LLAMA, "--tokens", "15.6T", "--price", "2.5")
    assert (result.exit_code, result.stderr) == (0, "")
    text = result.stdout
    assert text.startswith("llama-3.1-405b: 405.85 B parameters, bf16")
    assert "16,384 = 128 data x 8 tensor x 16 pipeline x 1 context, on 2,048 hosts" in text
    assert "interleaved 1F1B, 8 chunks per stage: a stage waits 10.5%" in text
    assert "GPU hours" in text
    assert "cost" in text
    assert "the harness lacks the interleaved schedule" in text


def test_llama_405b_for_programs() -> None:
    start = time.process_time()
    result = run(*LLAMA, "--tokens", "15.6T", "--format", "json")
    assert time.process_time() - start < 5
    body = json.loads(result.stdout)
    assert body["degrees"]["data"] == 128
    assert body["gpu_bytes"] == pytest.approx(sum(item["bytes"] for item in body["memory"]), abs=10)
    assert body["step_seconds"] == pytest.approx(sum(part["exposed"] for part in body["parts"]))
    assert body["bubble_share"] == pytest.approx(15 / (16 * 8 + 15))
    assert body["launchable"] is False
    assert body["gpu_hours_range"][0] < body["gpu_hours"] < body["gpu_hours_range"][1]
    assert max(body["bytes_by_stage"]) == body["gpu_bytes"]


def test_what_does_not_fit_has_no_price() -> None:
    result = run(*SMALL[:2], "--gpus", "8", "--gpu", "RTX4090-24GB", "--tensor", "2", "--tokens", "1T", "--price", "1")
    assert result.exit_code == 1
    assert "does not fit" in result.stdout
    assert "no hours and no price" in result.stdout
    assert ", cost" not in result.stdout


def test_a_scaling_table_is_the_plan_of_each_number_of_gpus() -> None:
    degrees = ("--model", "llama-3.1-70b", "--gpu", "H100-80GB", "--tensor", "8", "--checkpointing", "full")
    degrees = (*degrees, "--batch-tokens", "4194304", "--format", "json")
    rows = json.loads(run(*degrees, "--scaling", "512,64,36,16").stdout)["rows"]
    assert [row["gpus"] for row in rows] == [16, 36, 64, 512]
    assert rows[0]["fits"] is False
    assert rows[0]["efficiency"] is None
    assert "36 GPUs are not a multiple of tensor 8" in rows[1]["why_not"]
    for row in rows[2:]:
        alone = json.loads(run(*degrees, "--gpus", str(row["gpus"])).stdout)
        assert row["step_seconds"] == alone["step_seconds"]
        assert row["mfu"] == alone["mfu"]
        assert row["bound_by"]["name"] == max(alone["parts"], key=lambda part: part["exposed"])["name"]
    per_gpu = [row["tokens_per_second"] / row["gpus"] for row in rows[2:]]
    assert [row["efficiency"] for row in rows[2:]] == pytest.approx([1.0, per_gpu[1] / per_gpu[0]])
    assert per_gpu[1] < per_gpu[0]


def test_what_the_harness_can_launch_it_says() -> None:
    result = run(*SMALL, "--pipeline", "4", "--checkpointing", "full")
    assert "`harness launch` has these degrees" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*LLAMA, "--pipeline", "12"), "16,384 GPUs are not a multiple of tensor 8 x pipeline 12"),
        (("--tensor", "2"), "degrees of parallelism need `--model`, `--gpus` and `--gpu`"),
        ((*SMALL, "--tensor", "2", "--schedule", "1f2b"), "`--schedule 1f2b` is not one of naive"),
        ((*SMALL, "--tensor", "2", "--precision", "bf17"), "`--precision bf17` is not one of"),
        ((*SMALL, "--tensor", "2", "--batch-tokens", "many"), "`--batch-tokens`"),
        ((*SMALL, "--tensor", "2", "--zero-stage", "4"), "`--zero-stage 4` is not a stage"),
        ((*SMALL, "--pipeline", "4", "--timeline", "/nowhere/x.svg"), "cannot be written"),
        ((*SMALL[:2], "--gpu", "H100", "--scaling", "8,x"), "`--scaling 8,x` is no list of numbers of GPUs"),
        (("--model", "llama-99", "--gpu", "H100", "--scaling", "8,16"), "the model's size is not known"),
        ((*SMALL, "--pipeline", "16", "--timeline", "x.svg", "--batch-tokens", "16M"), "cannot be read"),
        (("--params", "70e9", "--non-state-peak", "22GB"), "a measured peak needs"),
        (("--params", "70e9", "--gpu", "H100", "--non-state-peak", "much"), "`--non-state-peak`"),
        (("--params", "70e9", "--precision", "fp8"), "no recipe with fp8"),
        (("--model", "llama-99", "--table"), "the model's size is not known"),
        (("--table", "--gpus", "0"), "`--gpus 0`"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, tuple) else "",
)
def test_mistakes_have_one_sentence(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refuse(*arguments).message


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"])
def test_a_timeline_is_a_picture(schedule: str, tmp_path: Path) -> None:
    chunks = ("--virtual-stages", "2") if schedule == "interleaved" else ()
    file = tmp_path / "timeline.svg"
    batch = str(16 * 16 * 4096)
    result = run(
        *SMALL,
        "--pipeline",
        "4",
        "--schedule",
        schedule,
        *chunks,
        "--batch-tokens",
        batch,
        "--timeline",
        str(file),
        "--checkpointing",
        "full",
    )
    assert (result.exit_code, result.stderr) == (0, f"Wrote {file}\n")
    picture = ET.fromstring(file.read_text(encoding="utf-8"))  # noqa: S314 - written a line above
    tips = [element.text for element in picture.iter() if element.tag.endswith("title")]
    forwards = [tip for tip in tips if tip and "forward of micro-batch" in tip]
    assert len(forwards) == 16 * 4 * (2 if schedule == "interleaved" else 1)


def test_the_table_of_states() -> None:
    result = run("--table")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    row = next(line for line in lines if line[:1] == ["70B"])
    assert row[1:3] == ["fp32", "1,120"]
    body = json.loads(run("--table", "--format", "json").stdout)
    assert len(body["states"]) == 18
    assert max(map(len, result.stdout.splitlines())) <= 112


def test_a_bare_count_in_fp32() -> None:
    result = run("--params", "7e9", "--precision", "fp32", "--gpus", "8")
    assert "4 parameters + 4 gradients + 8 optimizer states = 16 bytes per parameter" in result.stdout
    plain = run("--params", "7e9", "--gpus", "8")
    assert "16-bit weights and Adam" in plain.stdout


def test_a_measured_peak() -> None:
    result = run("--params", "70e9", "--gpu", "H100-80GB", "--non-state-peak", "22GB")
    assert "14 x H100-80GB would hold the states alone" in result.stdout
    stage3 = next(line for line in result.stdout.splitlines() if line.startswith("ZeRO-3"))
    assert stage3.split() == ["ZeRO-3", "92.00", "GB,", "no", "68.67", "GB,", "fits", "57.00", "GB,", "fits", "20"]
    body = json.loads(
        run(
            "--model", "llama-3.1-70b", "--gpu", "H100", "--gpus", "64", "--non-state-peak", "22GB", "--format", "json"
        ).stdout
    )
    assert [each["fits"] for each in body["stages"][3]["topologies"]] == [True]
