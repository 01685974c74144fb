# SPDX-License-Identifier: Apache-2.0
"""The same settings by another trainer, and verdicts inside the range of the estimate. Needs nothing; two seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.cli.plan_options import Trainer
from harness.facts.devices import DEVICES, usual_gpus_per_host
from harness.plan.memory.memory_estimate import Capacity, check_fit
from harness.plan.planner import Plan, make_plan
from harness.plan.trainer_loop import TRAINERS, logits_bytes
from tests.support.plan_inputs import offload, plan_of, run_of

Write = Callable[[str, str], str]
LONG = {"max_length": 32768}
SPEC = """\
model: {name_or_path: Qwen/Qwen2.5-32B, attn_implementation: sdpa}
data: {train: "builtin:python-docs", max_length: LENGTH}
train: {max_steps: 10, per_device_train_batch_size: 1, gradient_checkpointing: true}
precision: {bf16: true}
zero: {stage: 3, offload_optimizer: {device: cpu}, offload_param: {device: cpu}}
launch: {num_gpus: 8}
cluster: {gpu: A100-80GB, host_memory: 2TB}
"""
FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
finetuning_type: full
cutoff_len: 16384
per_device_train_batch_size: 1
bf16: true
"""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(
        build_app(list(arguments)), list(arguments), catch_exceptions=False, env={"COLUMNS": "110"}
    )


def planned(trainer: str = "", **changes: Any) -> Plan:
    return make_plan(run_of(zero=offload("cpu"), **changes), trainer=trainer)


@pytest.mark.parametrize("length", [4096, 16384, 65536])
def test_a_trainer_has_all_logits_at_once(length: int) -> None:
    """12 bytes a token and word in fp32, and 2 more where a loop keeps the model's output in bf16."""
    run_spec = run_of("Qwen/Qwen2.5-7B", data={"max_length": length}, tuned_defaults=True)
    plans = {name: make_plan(run_spec, trainer=name, with_search=False) for name in TRAINERS}
    logits = {name: logits_bytes(plan.memory) for name, plan in plans.items() if plan.memory}
    words = 152_064 * length
    assert logits["trainer"] == logits["llama-factory"] == logits["axolotl"] == logits["swift"]
    assert logits["trainer"] == pytest.approx(12 * words, rel=0.03)
    assert logits["accelerate"] - logits["trainer"] == 2 * words
    ours = plans["trainer"].other_loop
    assert ours is not None
    assert ours.trainer == ""
    assert logits_bytes(ours.memory) < logits["trainer"] / 2


def test_the_option_has_every_trainer() -> None:
    assert list(Trainer) == list(TRAINERS)


def test_a_plan_that_holds_for_our_loop_alone_says_so_first(write: Write) -> None:
    first = run("plan", write("a.yaml", SPEC.replace("LENGTH", "49152"))).stdout.splitlines()
    assert first[1].startswith("Only `harness launch` fits: ")
    assert first[2].startswith("With the Trainer it does not fit: ")
    assert "logits of a whole micro-batch are 8" in " ".join(map(str.strip, first[2:4]))


def test_a_plan_that_holds_for_both_says_nothing_of_the_other(write: Write) -> None:
    text = run("plan", write("a.yaml", SPEC.replace("LENGTH", "4096"))).stdout
    assert "\nFits: " in text
    assert "Trainer" not in text


@pytest.mark.parametrize(
    ("text", "name", "who"),
    [
        (FACTORY, "a.yaml", "LLaMA-Factory"),
        ("base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\n"
         "datasets: [{path: d.jsonl, type: chat_template}]\n", "b.yaml", "axolotl"),
        ("NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --train_type full --dataset d.jsonl --deepspeed zero3\n",
         "c.sh", "ms-swift"),
    ],
)  # fmt: skip
def test_the_file_of_a_program_is_planned_as_its_own_trainer(write: Write, text: str, name: str, who: str) -> None:
    result = run("plan", write(name, text), "--world-size", "8", "--set", "cluster.gpu=H100-80GB")
    assert f"trained by {who}" in " ".join(result.stdout.split("\n")[:2])
    assert "With `harness launch` it " in result.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", FACTORY + "optim: OPTIMIZER\n"),
        ("b.yaml", "base_model: Qwen/Qwen2.5-7B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\n"
         "datasets: [{path: d.jsonl, type: chat_template}]\noptimizer: OPTIMIZER\n"),
        ("c.sh", "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --train_type full --dataset d.jsonl "
         "--deepspeed zero2 --optim OPTIMIZER\n"),
    ],
)  # fmt: skip
def test_the_optimizer_that_a_file_names_is_planned(write: Write, name: str, text: str) -> None:
    """The unfused one has a square root of each state that it steps."""
    plans = {
        optimizer: run("plan", write(name, text.replace("OPTIMIZER", optimizer)), "--world-size", "8", "--long").stdout
        for optimizer in ("adamw_torch", "adamw_torch_fused")
    }
    assert ["square roots of Adam's states" in text for text in plans.values()] == [True, False]


def test_ms_swift_without_deepspeed_has_no_masters(write: Write) -> None:
    """8 bytes a parameter and the logits, where the spec has 16."""
    script = "swift sft --model Qwen/Qwen2.5-1.5B --train_type full --dataset d.jsonl --max_length 512\n"
    body = json.loads(run("plan", write("a.sh", script), "--world-size", "1", "--format", "json").stdout)
    assert body["bytes_per_parameter"]["master"] == 0
    assert body["bytes_per_parameter"]["states"] == 4


@pytest.mark.parametrize("share", [0.86, 1.0, 1.2])
def test_a_gpu_inside_the_range_gives_no_verdict(share: float) -> None:
    memory = planned().memory
    assert memory is not None
    low, high = memory.gpu_peak_range
    fit = check_fit(
        memory, Capacity(int(share * memory.allocated_peak) + (low - int(0.85 * memory.allocated_peak)), 10**13)
    )
    assert fit.uncertain == (low, high)
    assert fit.verdict is None


@pytest.mark.parametrize(("add", "verdict"), [(-1, False), (1, True)])
def test_beyond_the_range_the_verdict_is_certain(add: int, verdict: bool) -> None:
    memory = planned().memory
    assert memory is not None
    capacity = memory.gpu_peak_range[0] - 1 if add < 0 else memory.gpu_peak_range[1]
    assert check_fit(memory, Capacity(capacity, 10**13)).verdict is verdict


def test_a_host_that_is_too_small_is_certain() -> None:
    memory = planned().memory
    assert memory is not None
    assert check_fit(memory, Capacity(memory.gpu_peak, 10**9)).verdict is False


def test_a_sure_failure_outside_training_is_certain() -> None:
    """The range is that of training: what is too large while a checkpoint is read fails all the same."""
    memory = planned().memory
    assert memory is not None
    gpu = sum(memory.gpu_peak_range) // 2
    extra = memory.items_of("gpu")[0]._replace(bytes=2 * gpu, phases=("resume",))
    larger = replace(memory, items=(*memory.items, extra))
    assert check_fit(memory, Capacity(gpu, 10**13)).verdict is None
    assert check_fit(larger, Capacity(gpu, 10**13)).verdict is False


def test_rows_have_the_verdict_of_the_plan(write: Write) -> None:
    """One notion: a row inside the range is neither a yes nor a no, in JSON and in the table."""
    spec = write("a.yaml", SPEC.replace("LENGTH", "4096").replace("80GB", "80GB, gpu_memory: 12GiB"))
    body = json.loads(run("plan", spec, "--format", "json").stdout)
    (row,) = [each for each in body["alternatives"] if each["chosen"]]
    assert row["fits"] is body["fits"] is None
    assert re.search(r"\n> .* not certain\n", run("plan", spec, "--long").stdout)


def test_both_ends_are_said(write: Write) -> None:
    spec = write("a.yaml", SPEC.replace("LENGTH", "4096").replace("80GB", "80GB, gpu_memory: 12GiB"))
    result = run("plan", spec)
    assert result.exit_code == 0
    assert "\nNot certain: GPU memory is 10" in result.stdout
    assert "in training, of 12.0 GiB" in result.stdout
    assert json.loads(run("plan", spec, "--format", "json").stdout)["fits"] is None


@pytest.mark.parametrize(
    ("name", "gib"), [("A100-80GB", 79.33), ("V100-32GB", 31.75), ("RTX3090-24GB", 23.69), ("L40S-48GB", 44.4)]
)
def test_a_device_has_the_bytes_that_torch_reports(name: str, gib: float) -> None:
    assert DEVICES[name].memory / 2**30 == pytest.approx(gib, abs=0.005)


def test_only_nvidias_driver_keeps_memory() -> None:
    assert DEVICES["MI300X-192GB"].memory == 196592 << 20
    assert DEVICES["A30-24GB"].memory == (24576 - 512) << 20


@pytest.mark.parametrize(
    ("kind", "hosts"), [("H100-80GB", "4 hosts x 8"), ("GB200-186GB", "8 hosts x 4"), ("MI300X-192GB", "4 hosts x 8")]
)
def test_a_world_size_without_hosts_is_hosts_of_the_usual_size(write: Write, kind: str, hosts: str) -> None:
    spec = write(
        "a.yaml", SPEC.replace("LENGTH", "4096").replace("A100-80GB", kind).replace("launch: {num_gpus: 8}\n", "")
    )
    text = run("plan", spec, "--world-size", "32").stdout
    assert f"Ranks      32, on {hosts} {kind}; their size is assumed, set `cluster.gpus_per_node`" in text
    written = run("plan", spec, "--world-size", "32", "--set", "cluster.gpus_per_node=32").stdout
    assert f"on 1 host x 32 {kind}\n" in written


def test_a_launch_on_one_machine_stays_one_host() -> None:
    assert usual_gpus_per_host("H100-80GB") == 8
    assert plan_of(launch={"num_gpus": 16}).settings.num_hosts == 1


def test_autocast_without_chunks_says_what_would_fit(write: Write) -> None:
    spec = (
        SPEC.replace("LENGTH", "16384")
        .replace("bf16: true", "bf16: false")
        .replace("launch:", "deepspeed: {torch_autocast: {enabled: true, dtype: bfloat16}}\nlaunch:")
    )
    body = json.loads(run("plan", write("a.yaml", spec), "--format", "json").stdout)
    (finding,) = [each for each in body["findings"] if each["gate"] == "MM021"]
    assert "`torch_autocast` switches the chunked loss off: logits take 28" in finding["message"]
    assert finding["message"].endswith("which fits")
    half = ("--format", "json", "--set", "train.max_grad_norm=0")
    body = json.loads(run("plan", write("b.yaml", spec.replace("bfloat16", "float16")), *half).stdout)
    (finding,) = [each for each in body["findings"] if each["gate"] == "MM021"]
    assert "in fp16 without it" in finding["message"]  # a V100 has no bf16


def test_what_else_is_unknown_does_not_hide_the_other_loop(write: Write) -> None:
    spec = SPEC.replace("LENGTH", "32768")
    known, unknown = (
        run("plan", write("a.yaml", text)).stdout for text in (spec, spec.replace(", host_memory: 2TB", ""))
    )
    assert "With the Trainer it is not certain: " in known
    assert "Fits, as far as known: " in unknown
    assert "With the Trainer it is not certain: " in unknown


@pytest.mark.parametrize(("stage", "share"), [(2, 1), (3, 8)])
def test_a_trainer_holds_the_reference_of_preferences(stage: int, share: int) -> None:
    """Whole below stage 3, as TRL starts it without ZeRO there; none where an adapter's base is the reference."""
    sections: dict[str, Any] = {"objective": "dpo", "dpo": {"beta": 0.1}, "zero": {"stage": stage}}
    pairs = run_of("llama-3.1-8b", **sections)
    plans = [make_plan(pairs, trainer=name, with_alternatives=False) for name in ("trainer", "")]
    adapter = run_of("llama-3.1-8b", **sections, model={"lora": {"r": 16}})
    plans.append(make_plan(adapter, trainer="trainer", with_alternatives=False))
    sizes = [sum(i.bytes for i in plan.memory.items if i.kind == "reference") for plan in plans if plan.memory]
    assert sizes == [pytest.approx(2 * 8.03e9 / share, rel=0.01), 0, 0]
