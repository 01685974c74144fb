# SPDX-License-Identifier: Apache-2.0
"""Answers of `harness size` to questions that users ask, on the screen and as JSON. Needs nothing; a minute."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.errors import UserError
from harness.plan.memory.memory_estimate import Capacity, check_fit
from harness.plan.search.nearest_fit import enough_host
from harness.plan.search.settings_search import HEADROOM
from tests.support.plan_inputs import plan_of

FULL = "size --model llama-2-13b --gpus 8 --gpu A6000-48GB --host-memory 512GB"
QLORA = "size --model qwen2.5-72b --gpus 8 --gpu RTX3090-24GB --qlora"


def ask(words: str) -> Any:
    arguments = words.split()
    return CliRunner().invoke(build_app(arguments), arguments, catch_exceptions=False, env={"COLUMNS": "110"})


def text_of(words: str) -> str:
    return " ".join(ask(words).stdout.split())


def body_of(words: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(ask(f"{words} --format json").stdout)
    return body


def test_the_length_is_said_and_whether_it_was_assumed() -> None:
    row = "rows of 4,096 tokens, all counted as full"
    assert f"{row}; assumed: `--max-length`, `--batch-tokens` GPU" in text_of(FULL)
    given = text_of(f"{FULL} --max-length 4096 --batch-tokens 1048576")
    assert f"{row} GPU" in given
    packed = text_of(f"{FULL} --max-length 2048 --set data.packing=true")
    assert "rows of 2,048 tokens; assumed: `--batch-tokens` GPU" in packed
    body = body_of(f"{FULL} --max-length 2048")
    assert (body["max_length"], body["assumed_options"]) == (2048, ["--batch-tokens"])


@pytest.mark.parametrize("gpu", ["A6000-48GB", "V100-32GB"])
@pytest.mark.parametrize(("word", "size"), [("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_a_precision_is_planned(word: str, size: int, gpu: str) -> None:
    words = f"size --model llama-3.2-1b --gpus 8 --gpu {gpu} --zero-stage 3 --precision {word}"
    assert f"1.24 B parameters in {word}" in text_of(words)
    body = body_of(words)
    assert body["bytes_per_parameter"]["parameters"] == size
    assert body["spec"]["precision"] == ({"bf16": False} if word == "fp32" else {word: True})
    assert not [each for each in body["findings"] if each["gate"] == "PR067"]  # which says that none was set


def test_fp32_takes_longer_and_more() -> None:
    half, whole = (body_of(f"{FULL} --precision {word} --zero-stage 3") for word in ("bf16", "fp32"))
    assert whole["step_seconds"] > 2 * half["step_seconds"]
    fewest = [body_of(f"{FULL} --precision {word} --min-gpus".replace(" --gpus 8", "")) for word in ("bf16", "fp32")]
    assert fewest[0]["state_bytes"] < fewest[1]["state_bytes"]
    with pytest.raises(UserError) as refused:
        ask("plan ds_configs/demo.yaml --precision fp32")
    fix = refused.value.findings[0].fix
    assert fix is not None
    assert fix.title == "write `--set 'precision={bf16: false}'` with a spec"


def test_4_bit_weights_that_do_not_fit_say_at_once_what_does_not_help() -> None:
    answer = ask(QLORA)
    first = " ".join(answer.stdout.splitlines()[:8])
    first = " ".join(first.split())
    assert "Nothing fits: " in first
    assert re.search(r"Each GPU holds all 4-bit weights, 3\d\.\d GiB, which DeepSpeed does not divide", first)
    assert "more GPUs do not help" in first
    for way in ("LoRA here with ", "GPUs of ", "a smaller model", "QLoRA with FSDP in another trainer"):
        assert way in first
    assert re.search(r"quant_storage`\), [\d.]+ GiB of them on each of \d+ GPUs", first)
    assert len(answer.stdout.splitlines()) <= 42
    assert body_of(QLORA)["nearest_fit"]["ranks"] is None


def test_lora_that_does_not_fit_says_how_many_gpus_would_do() -> None:
    words = "size --model llama-3.1-70b --gpus 4 --gpu A100-40GB --lora --host-memory 64GB"
    text = text_of(words)
    gpus = int(re.findall(r"Would be enough: ([\d,]+) x A100-40GB \(\d+ hosts of 8, LoRA\)", text)[0])
    assert 8 <= gpus <= 64
    assert body_of(words)["nearest_fit"]["ranks"] == gpus
    assert ask(words.replace("--gpus 4", f"--gpus {gpus}")).exit_code == 0


def test_lora_without_offload_needs_no_gpus_of_a_full_training() -> None:
    text = text_of("size --model llama-3.1-70b --gpus 2 --gpu RTX4090-24GB --lora")
    assert int(re.findall(r"; ([\d,]+) GPUs would do", text)[0].replace(",", "")) < 64
    assert re.search(r"not known: `cluster.host_memory`, [\d.]+ GiB needed", text)


def test_the_json_has_steps_epochs_and_what_more_gpus_do() -> None:
    words = "size --model llama-3.1-70b --gpus 8 --gpu A100-80GB --host-memory 2TB --tokens 10M --epochs 3"
    body, text = body_of(words), text_of(words)
    assert (body["steps"], body["epochs"]) == (29, 3)
    assert f"with twice the GPUs {body['with_twice_the_gpus']['gpu_peak_bytes'] / 2**30:.1f} GiB" in text
    assert body["with_twice_the_gpus"]["not_divided"][0]["bytes_per_rank"] > 2**30
    without = body["without_offload"]
    assert (without["offload_optimizer"], without["fits"]) == ("none", False)
    assert f"; {without['gpus_that_would_do']} GPUs would do" in text
    assert body["model"]["estimated"] is False


def test_known_disks_decide_where_host_memory_is_not_known() -> None:
    offload = "zero.offload_optimizer={device: nvme, nvme_path: /local}"
    plan = [*"size --model llama-3.1-70b --gpus 2 --gpu A100-40GB --nvme 4TB --set".split(), offload]
    text = CliRunner().invoke(build_app(plan), plan, env={"COLUMNS": "110"}).stdout
    assert "\nFits, as far as known: " in text
    no_disks = [word for word in plan if word not in ("--nvme", "4TB")]
    assert "\nNothing fits: " in CliRunner().invoke(build_app(no_disks), no_disks, env={"COLUMNS": "110"}).stdout


def test_a_fit_names_what_is_not_known() -> None:
    memory = plan_of(zero={"stage": 3, "offload_optimizer": {"device": "cpu"}}).memory
    assert memory is not None
    assert check_fit(memory, Capacity(2**50, None, None)).unknown == ("host memory",)
    assert check_fit(memory, Capacity(2**50, 2**50, None)).unknown == ()


def test_8_bit_adam_is_refused_without_a_value_that_nobody_wrote() -> None:
    text = text_of("size --model llama-3.1-8b --gpu A100-80GB --min-gpus --price 1.5")
    assert "at 1.50 a GPU hour" in text
    assert "refuses 8-bit Adam: SP007, no `optimizer.type` has states in 8 bits" in text
    assert "adamw8bit" not in text.replace("AdamW8bit", "")


def test_hosts_are_sold_by_nobody_but_a_seller() -> None:
    words = "size --model llama-3.2-1b --gpus 1 --gpu A100-40GB --cheapest --tokens 1e9 --price A100-40GB=1.5"
    assert "as Lambda sells them" in text_of(words)


def test_help_offers_the_precisions_that_are_planned() -> None:
    text = text_of("size --help")
    assert "--precision NAME bf16 (default), fp16 or fp32; `harness degrees` also has fp8." in text
    assert "8.03 B parameters, fp8, " in text_of(
        "degrees --model llama-3.1-8b --gpus 8 --gpu H100-80GB --precision fp8"
    )


def test_a_model_by_its_name_alone_is_planned_with_a_reservation() -> None:
    text = text_of("size --model flan-t5-11b --gpus 8 --gpu A100-80GB --host-memory 1TB")
    assert "Fits, as far as known: " in text
    like = "planned as a Llama-like model of the size in its name, and not with an encoder"
    assert like in text
    other = text_of("size --model some-11b --gpus 8 --gpu A100-80GB --host-memory 1TB")
    assert "Fits, as far as known: " in other
    assert "encoder" not in other


def test_adapters_with_states_on_disks_count_by_trained_parameter() -> None:
    pairs = ("zero.offload_optimizer={device: nvme, nvme_path: /local}", "zero.offload_param.device=none")
    words = "size --model llama-3.1-8b --gpus 2 --gpu A100-80GB --lora --host-memory 2TB --nvme 2TB".split()
    words += [word for pair in pairs for word in ("--set", pair)]
    text = CliRunner().invoke(build_app(words), words, env={"COLUMNS": "110"}).stdout
    assert "\n           12 bytes a trained parameter; DeepSpeed alone" in text


def test_a_slow_step_names_the_change_that_would_help() -> None:
    links = text_of("plan ds_configs/llama-3.1-8b-zero3.yaml --set cluster.link_bandwidth=12GB/s")
    assert re.search(r"limited by collectives [\d.]+ s \([\d.]+ to \d+\) with .*micro-batch 16", links)
    eager = text_of("plan ds_configs/llama-3.1-8b-zero3.yaml --set model.attn_implementation=eager")
    assert "with fused attention (`sdpa`)" in eager
    words = "size --model llama-3.2-1b --gpus 8 --gpu RTX4090-24GB --zero-stage 3 --max-length 512"
    boards = text_of(f"{words} --batch-tokens 8192")
    assert "with NVLink (300 GB/s)" in boards


def test_what_would_be_enough_leaves_the_same_headroom_everywhere() -> None:
    words = "size --model llama-3.1-70b --gpus 8 --gpu A100-80GB --host-memory 256GB"
    text, body = text_of(words), body_of(words)
    named = body["nearest_fit"]["host_bytes"]
    assert named == enough_host(body["nearest_fit"]["closest"]["host_peak_bytes"])
    given = body_of(f"{words[: words.index('--host-memory')]}--host-memory {named}B")
    assert given["fits"] is True
    assert given["headroom"] >= HEADROOM
    cell = re.findall(r"LoRA here with ([\d.]+) GiB of memory a host", text)
    if cell:
        enough = body_of(f"{words[: words.index('--host-memory')]}--lora --host-memory {cell[0]}GiB")
        assert enough["fits"] is not False


def test_a_name_alone_is_shown_the_names_of_its_family() -> None:
    assert (
        "for its own sizes; did you mean `mistral-7b-v0.1`?"
        in ask("size --model mistral-7b --gpus 1 --gpu A100-80GB --lora").stderr
    )
    assert "did you mean" not in ask("size --model flan-t5-11b --gpus 8 --gpu A100-80GB --lora").stderr


def test_the_alternatives_of_a_search_have_other_places_first() -> None:
    """They were the same settings with 2, 4 and 8 ranks a sequence."""
    words = "size --model mixtral-8x7b --gpus 8 --gpu A100-40GB --host-memory 512GB --lora"
    lines = ask(words).stdout.partition("\nAlternatives")[2].partition("\n\n")[0].splitlines()[1:]
    places = [re.match(r"  (.*?), (?:micro|sequence|tensor|pipeline)", line) for line in lines]
    named = [place[1] for place in places if place]
    assert "ZeRO-3" in named
    assert "ZeRO-3, optimizer on CPU" in named
    assert len(set(named)) == 3


def test_8_bit_base_weights_are_refused_with_what_bounds_them() -> None:
    words = "size --model llama-3.1-8b --gpus 8 --gpu RTX4090-24GB --lora --set model.quantization.load_in_8bit=true"
    assert "8 bits need about half of bf16, between a plan with `--lora` and one with `--qlora`" in " ".join(
        ask(words).stderr.split()
    )


def test_the_least_host_memory_is_that_of_the_table_and_is_said_first() -> None:
    text = text_of(
        "size --model llama-3.1-70b --gpus 8 --gpu A100-40GB --host-memory 1TB --max-length 4096"
        " --set train.per_device_train_batch_size=1 --set train.gradient_checkpointing=true"
    )
    needed = re.findall(r"Nothing fits: host memory is too small, ([\d.]+) TiB needed of", text)[0]
    least, sure = re.findall(r"probably ([\d.]+) TiB of memory a host, surely ([\d.]+) TiB", text)[0]
    cells = re.findall(r"CPU offload +RAM [\d.]+ TiB +RAM [\d.]+ TiB +RAM ([\d.]+) TiB", text)
    assert needed == least < sure
    assert f"{float(least):.1f}" == cells[0]


def test_a_plan_with_unknown_host_memory_names_what_needs_less() -> None:
    words = "size --model llama-2-70b --gpus 16 --gpus-per-node 16 --gpu A10G-24GB --max-length 2048"
    text = text_of(f"{words} --set train.per_device_train_batch_size=1")
    needed, less = re.findall(r"`cluster.host_memory`, ([\d.]+) TiB needed, ([\d.]+) TiB with ZeRO-3", text)[0]
    assert float(less) < 0.9 * float(needed)


def test_the_largest_micro_batch_on_data_ranks_alone_is_said() -> None:
    words = "size --model llama-13b --gpus 8 --gpu A100-80GB --max-length 2048 --batch-tokens 262144"
    without, largest = body_of(words)["largest_micro_batches"]
    assert not without["gradient_checkpointing"]
    assert 8 <= largest["micro_batch"] <= 32
    for each in (without, largest):
        assert each["fits"] is not False
        assert each["micro_batch"] * each["gradient_accumulation_steps"] * 8 == 128
    said = f"{largest['micro_batch']} x {largest['gradient_accumulation_steps']} with it"
    assert said in text_of(words)
    pinned = f"{words} --set train.per_device_train_batch_size=1"
    assert body_of(pinned)["largest_micro_batches"] == []
