# SPDX-License-Identifier: Apache-2.0
"""The ways of training a model by numbers of GPUs: states, the fewest, assumed hosts, refusals of a launch."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.check.check_file import check_file
from harness.check.fit_of_spec import search_of_run
from harness.check.fit_table import FitSearch, FitTable, make_fit_table
from harness.check.training_ways import WAYS, way_named
from harness.cli.app import build_app
from harness.plan.search.nearest_fit import enough_host
from harness.plan.search.plan_request import PlanRequest
from harness.plan.trainer_loop import TRAINERS
from harness.views.plan_fit_table import render_fit_table, render_min_gpus
from harness.views.style import Style


def run(words: str) -> Any:
    arguments = words.split()
    return CliRunner().invoke(build_app(arguments), arguments, catch_exceptions=False, env={"COLUMNS": "110"})


@pytest.fixture(scope="module")
def table() -> FitTable:
    return make_fit_table(FitSearch(PlanRequest("Qwen/Qwen3-32B", 1, "H100-80GB", max_length=8192)))


def test_states_get_better_with_more_gpus(table: FitTable) -> None:
    order = ("no", "host", "not certain", "disks", "fits")
    for name in ("all on GPUs", "CPU offload", "LoRA"):
        states = [order.index(cell.state) for cell in table.rows[name]]
        assert states == sorted(states)
    assert {cell.state for cell in table.rows["NVMe offload"]} <= {"disks", "not certain"}  # their size is not known


def test_an_expert_would_say_so(table: FitTable) -> None:
    """16 without offload, 4 or 8 with the optimizer on the host, one for adapters; nobody has an endless host."""
    assert {name: cell and cell.gpus for name, cell in table.fewest.items()}["all on GPUs"] == 16
    assert table.fewest_of_all is not None
    assert table.fewest_of_all.way == "CPU offload"
    assert 2 < table.fewest_of_all.gpus <= 8
    first = table.rows["CPU offload"][0]
    assert first.state == "host"
    assert first.best.host_peak > 600 * 2**30
    text = render_min_gpus(table, Style(False), 110)
    head = " ".join(text.partition("\nThe states")[0].split())
    assert re.search(r"CPU offload and [\d.]+ [GT]iB of memory a host, [^;]+ a step; on \d+ without offload", head), (
        head
    )
    assert "are assumed to have 1.76 TiB of memory, as Lambda sells them" in text
    assert f"RAM {enough_host(first.best.host_peak) / 2**30:.0f} GiB" in text
    assert max(map(len, text.splitlines())) <= 110


def test_a_narrow_table_starts_with_the_gpus_that_were_asked_for(table: FitTable) -> None:
    lines = render_fit_table(table, Style(False), 80, 1).splitlines()
    assert lines[0].split() == ["GPUs", "1", "2", "4", "8", "16"]
    assert max(map(len, lines)) <= 80
    assert render_fit_table(table, Style(False), 80, 64).splitlines()[0].split()[-1] == "64"
    assert "ZeRO-3, 2 x 4" in render_fit_table(table, Style(False), 120)


def test_where_no_way_fits_the_reasons_stand_alone(table: FitTable) -> None:
    rows = {name: tuple(replace(cell, state="no") for cell in row) for name, row in table.rows.items()}
    nothing = replace(table, rows=rows, fewest=dict.fromkeys(rows))
    text = render_min_gpus(nothing, Style(False), 80)
    assert "Fewest" not in text
    assert "all on GPUs fits on none: 64 GPUs would need " in text
    assert re.search(r"On \d+ a GPU would need [\d.]+ GiB with (all on GPUs|CPU|NVMe)", text), text
    assert "expert or tensor parallelism" in " ".join(text.split())


def test_hosts_that_nobody_has_are_no_fewest() -> None:
    """kimi-k2 by offload on one GPU: 21 TiB of memory, where a host has 1.76 TiB."""
    search = FitSearch(PlanRequest("kimi-k2", 1, "H100-80GB"))
    cell = search.cell(1, way_named("CPU offload"))
    assert cell is not None
    assert (cell.state, cell.best.host_peak > 10 * 2**40) == ("host", True)
    assert search.fewest([cell]) is None
    near = replace(cell, best=replace(cell.best, host_peak=2**41))
    assert search.fewest([cell, near]) is near


def test_the_host_that_is_given_is_the_host(table: FitTable) -> None:
    given = FitSearch(PlanRequest("Qwen/Qwen3-32B", 1, "H100-80GB", host_memory="256GB", max_length=8192))
    cell = given.cell(8, way_named("CPU offload"))
    assert cell is not None
    assert cell.state == "host"
    assert given.capacity(8).host == 256 * 10**9


def test_what_nothing_fits_on_leads_with_what_does() -> None:
    result = run("size --model llama-3.1-8b --gpus 1 --gpu 4090 --host-memory 64GB")
    assert result.exit_code == 1
    assert "Nothing fits" in result.stdout
    would = result.stdout.partition("Would be enough: ")[2].partition("Searched")[0]
    assert "LoRA here" in would
    assert "of memory a host" in would
    assert "QLoRA" in result.stdout.partition("all on GPUs ")[2]


@pytest.mark.parametrize("option", ["--lora", "--qlora"])
def test_adapters_are_an_option(option: str) -> None:
    words = f"size --model llama-3.1-8b --gpus 1 --gpu A100-40GB --host-memory 200GB --format json {option}"
    body = json.loads(run(words).stdout)
    assert body["spec"]["model"]["lora"] == {"r": 16, "target_modules": "all-linear"}
    assert ("quantization" in body["spec"]["model"]) == (option == "--qlora")


def test_the_ways_of_another_trainer_are_those_of_its_loop() -> None:
    request = PlanRequest("llama-3.1-8b", 8, "A100-40GB", host_memory="1TB", max_length=8192)
    lora = next(way for way in WAYS if way.name == "LoRA")
    peaks = {}
    for trainer in ("", next(iter(TRAINERS))):
        cell = FitSearch(request, trainer=trainer).cell(8, lora)
        assert cell is not None
        assert cell.best.time is not None
        peaks[trainer] = cell.best.gpu_peak / cell.best.settings.micro_batch
    assert peaks["trainer"] > 1.2 * peaks[""]  # logits of a whole micro-batch


def test_a_model_with_towers_says_that_its_text_part_is_planned() -> None:
    result = run("size --model Qwen2.5-VL-7B --gpus 4 --gpu H100-80GB --zero-stage 3")
    assert "MM022" in result.stdout + result.stderr
    assert "this plan is of its text part, 7.62 B parameters" in (result.stdout + result.stderr).replace("\n  ", " ")


def test_more_gpus_do_not_divide_4_bit_weights() -> None:
    """No stage shards them (MD043): as many GPUs of 24 GB as one likes do not hold 70 B."""
    result = run("size --model llama-3-70b --gpus 4 --gpu A10G --qlora --host-memory 500GB")
    assert result.exit_code == 1
    assert " x A10G" not in result.stdout.partition("Would be enough: ")[2].partition("Searched")[0]


def test_without_offload_no_host_has_to_be_known() -> None:
    result = run("size --model llama-3.2-1b --gpu L4 --min-gpus --format json")
    body = json.loads(result.stdout)
    assert (result.exit_code, body["table"]["host_memory_bytes"]) == (0, None)
    assert body["gpus"] <= 128
    assert body["offload_optimizer"] == body["offload_param"] == "none"
    assert {"zero_stage", "micro_batch", "gradient_accumulation_steps", "fits", "headroom", "bottleneck"} <= set(body)


@pytest.mark.parametrize("stage", [0, 1])
def test_the_stage_that_is_given_is_that_of_the_ways(stage: int) -> None:
    request = PlanRequest("llama-3.2-1b", 1, "A100-40GB", stage=stage)
    cells = {way.name: FitSearch(request).cell(2, way) for way in WAYS}
    assert [name for name, cell in cells.items() if cell] == ["all on GPUs", "8-bit Adam", "LoRA", "QLoRA"]
    assert {cell.best.settings.stage for cell in cells.values() if cell} == {stage}


def test_a_stage_that_no_way_has_is_no_error_of_the_harness(table: FitTable) -> None:
    assert "does not fit" in render_min_gpus(replace(table, rows={}, fewest={}), Style(False), 110)


def test_degrees_that_one_gpu_cannot_have_leave_the_answer() -> None:
    words = "size --model llama-3.1-8b --gpus 2 --gpu 4090 --host-memory 24GB --set parallel.tensor_parallel_size=2"
    result = run(words)
    assert result.exit_code == 1
    assert "Nothing fits" in result.stdout
    assert "all on GPUs " in result.stdout


def test_a_spec_keeps_its_objective_and_its_precision() -> None:
    text = """
objective: reward
tuned_defaults: false
model: {name_or_path: Qwen/Qwen3-8B}
data: {train: pairs.jsonl, max_length: 4096}
train: {max_steps: 10, per_device_train_batch_size: 1, global_batch_size: 64}
precision: {fp16: true}
cluster: {num_nodes: 1, gpus_per_node: 8, gpu: H100-80GB, host_memory: 1TB}
"""
    checked = check_file("mine.yaml", text=text, world_size=8)
    assert checked.run is not None
    search = search_of_run(checked.run, None, None, "")
    assert search is not None
    raw = search._raw(8, WAYS[0])
    assert (raw["objective"], raw["tuned_defaults"], raw["precision"]) == ("reward", False, {"fp16": True})
    assert "optimizer" not in raw
    assert "num_train_epochs" not in raw["train"]
    cell = search.cell(8, WAYS[0])
    assert cell is not None
    assert search.refusal(cell) is None or search.refusal(cell).gate != "PR001"


@pytest.mark.parametrize(("gpu", "per_host"), [("GB200", 4), ("GH200", 1), ("H100-80GB", 8)])
def test_a_host_has_as_many_gpus_as_it_is_built_with(gpu: str, per_host: int) -> None:
    search = FitSearch(PlanRequest("llama-3.2-1b", 1, gpu, host_memory="400GB"))
    assert search._raw(8, WAYS[0])["cluster"]["gpus_per_node"] == per_host


def test_another_batch_is_whole_steps_of_accumulation() -> None:
    search = FitSearch(PlanRequest("llama-3.2-1b", 1, "H100-80GB", tokens_per_step=6 * 4096))
    cell = search.cell(1, WAYS[0])
    assert cell is not None
    assert search.with_batch(cell, 0.25) is None
    more = search.with_batch(cell, 4.0)
    assert more is not None
    assert more.best.settings.accumulation == 4 * cell.best.settings.accumulation


def test_a_way_that_fits_on_no_number_says_why() -> None:
    """Half a trillion parameters in 4 bits on each GPU: no stage divides them."""
    search = FitSearch(PlanRequest("llama-3.1-405b", 1, "H100-80GB"))
    cells = tuple(cell for gpus in (8, 64) if (cell := search.cell(gpus, way_named("QLoRA"))))
    table = make_fit_table(FitSearch(PlanRequest("qwen2.5-0.5b", 1, "H100-80GB")))
    table = replace(table, rows={**table.rows, "QLoRA": cells}, fewest={**table.fewest, "QLoRA": None})
    text = " ".join(render_min_gpus(table, Style(False), 110).split())
    assert "QLoRA fits on none: 64 GPUs would need " in text
    assert "the harness does not divide 4-bit weights (MD043); other trainers do with" in text
    assert "LoRA fits on none" not in text.replace("QLoRA", "")
    assert "More GPUs divide states" not in text
    long = " ".join(render_min_gpus(replace(table, max_length=32_768), Style(False), 110).split())
    assert "activations of a sequence (SDPA) only sequence or tensor ranks do." in long


def test_a_smaller_number_that_may_be_enough_stands_beside_the_fewest() -> None:
    """Adapters of 8B on a card of 24 GB: in the printed range of memory."""
    table = make_fit_table(FitSearch(PlanRequest("llama-3.1-8b", 1, "RTX4090")))
    fewest = render_min_gpus(table, Style(False), 110).partition("\nFewest")[2]
    assert re.search(r"^LoRA +~1 or 2 ", fewest, re.MULTILINE), fewest


def test_states_that_fill_most_of_the_memory_leave_no_doubt() -> None:
    """13B on 8 cards of 40 GB: states alone are 24.2 GiB a card, and what is beside them has room."""
    cell = FitSearch(PlanRequest("llama-2-13b", 1, "A100-40GB")).cell(8, WAYS[0])
    assert cell is not None
    assert cell.state == "fits"


def test_a_pipeline_is_tried_where_deepspeed_has_one() -> None:
    """More ranks than sequences begin with a pipeline: stage 1, whose optimizer stays on GPUs, and no adapters."""
    search = FitSearch(PlanRequest("mixtral-8x7b", 1, "A100-80GB", tokens_per_step=65_536))
    cell = search.cell(64, WAYS[0])
    assert cell is not None
    assert (cell.best.settings.pipeline_parallel_size, cell.best.settings.stage) == (4, 1)
    assert search.cell(64, way_named("LoRA")) is search.cell(64, way_named("CPU offload")) is None


def test_what_fits_if_the_host_is_large_enough_stands_before_what_may_not_fit_either() -> None:
    words = "--gpu L40-48GB --set cluster.gpu_memory=48GB --set cluster.gpu_tflops=181 --max-length 4096"
    words += " --set cluster.gpu_memory_bandwidth=864GB/s --set train.per_device_train_batch_size=1 --format json"
    plan = json.loads(run(f"size --model qwen2.5-32b --gpus 8 {words}").stdout)
    table = json.loads(run(f"size --model qwen2.5-32b --min-gpus {words}").stdout)["table"]
    row = next(each["cells"] for each in table["ways"] if each["way"] == "CPU offload")
    cell = next(each for each in row if each["gpus"] == 8)
    assert plan["search"]["fastest"][0]["host_peak_bytes"] == cell["host_peak_bytes"]
    assert cell["state"] == "host"
