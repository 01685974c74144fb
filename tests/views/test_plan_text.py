# SPDX-License-Identifier: Apache-2.0
"""The plan as text: what must be on it, and that it keeps to the width. Needs nothing; a second."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from harness.check.plan_report import PlanReport
from harness.plan.planner import Plan, make_plan
from harness.plan.search.nearest_fit import find_nearest_fit, find_without_offload
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.views.plan import render_plan
from harness.views.style import Style


def plan_of(ranks: int | None = 8, **sections: Any) -> Plan:
    raw: dict[str, Any] = {
        "model": {"name_or_path": "meta-llama/Llama-3.1-70B"},
        "data": {"max_length": 4096},
        "train": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 32, "gradient_checkpointing": True},
        "precision": {"bf16": True},
        "zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "cluster": {"gpu": "H100", "host_memory": "2TB", "gpus_per_node": 8},
        **sections,
    }
    return make_plan(resolve_run(RunSpec.model_validate(raw), name="flagship", world_size=ranks))


@cache
def flagship() -> Plan:
    return plan_of()


def report_of(plan: Plan) -> PlanReport:
    command = "harness launch a.yaml --dry-run"
    others = (*plan.alternatives, *plan.fastest_fitting)
    nearest_fit = None
    if plan.model is not None and plan.fit.fits is False and not any(each.fit.fits for each in others):
        nearest_fit = find_nearest_fit(plan.run, plan.model, plan.device, plan.capacity, plan.alternatives)
    return PlanReport(plan, None, nearest_fit, plan.findings, command)


def shown(plan: Plan, width: int = 110, *, long: bool = False) -> str:
    return render_plan(report_of(plan), Style(), width, long=long)


def test_the_flagship_on_one_screen() -> None:
    text = shown(flagship(), 100)
    lines = text.splitlines()
    assert lines[0] == "flagship: 70.55 B parameters in bf16, ZeRO-3, optimizer on CPU, micro-batch 1, checkpointing"
    assert lines[1].startswith("Fits: host memory is the fullest, ")
    assert lines[1].endswith("while a checkpoint is read")
    for expected in (
        "Ranks      8, on 1 host x 8 H100-80GB",
        "Batch      256 = 1 x 8 data ranks x 32 accumulation, 1,048,576 tokens at most",
        "of 79.1 GiB per rank, in the backward pass",
        ", limited by ",
        "Plan: 8 ranks, 0 errors, 0 warnings. Nothing was started and no host was contacted. More: `--long`.",
        "Next: harness launch a.yaml --dry-run",
    ):
        assert expected in text
    assert len(lines) <= 30
    assert "from" not in text, "no formulas"


def test_the_tables_of_the_flagship() -> None:
    text = shown(flagship(), long=True)
    for expected in (
        "States     2 parameters + 2 gradients",
        "(8 P / N) x 8",
        "> ZeRO-3, optimizer on CPU",
        "no: GPU memory",
        "no: host memory, resume only",
        "Parts of a step",
        "`tuned_defaults: false` keeps DeepSpeed's defaults",
    ):
        assert expected in text


@pytest.mark.parametrize("width", [40, 80, 100, 140, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_lines_keep_to_the_width_and_to_ascii(width: int, colour: bool) -> None:
    plan = flagship()
    report = report_of(replace(plan, tokens=2e9, price=2.5))
    painted = render_plan(report, Style(colour), width)
    text = re.sub("\x1b\\[[0-9;]*m", "", painted)
    assert (text == painted) is not colour
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= max(width, 80)
    assert not any(line != line.rstrip() for line in text.splitlines())
    details = render_plan(report, Style(), width, long=True)
    table = details[details.index("Memory at the peak") : details.index("Parts of a step")]
    assert max(map(len, table.splitlines())) <= max(width, 80)


def test_words_and_terms_are_whole() -> None:
    wide = shown(flagship(), 200)
    for width in range(60, 120, 3):
        words = shown(flagship(), width).split()
        assert sorted(words) == sorted(wide.split())
        lines = shown(flagship(), width).splitlines()
        assert not any(line.endswith("micro-batch") for line in lines)


def test_hours_and_cost_are_ranges_of_two_figures() -> None:
    text = shown(replace(flagship(), tokens=2e9, price=2.5))
    assert re.search(r"^Step +[\d.]+ min \([\d.]+ to [\d.]+\), limited by", text, re.MULTILINE)
    assert re.search(r"^Speed +[\d,]+0 \([\d,]+0 to [\d,]+0\) tokens/s, MFU \d+%$", text, re.MULTILINE)
    assert re.search(
        r"^Run +2.00 B tokens, [\d,]+ steps: \d+ h \(\d+ to \d+\), [\d,]+0 \([\d,]+ to [\d,]+\) GPU hours(, |$)",
        text,
        re.MULTILINE,
    )
    assert re.search(r"^Cost +[\d,]+00 \([\d,]+00 to [\d,]+00\)$", text, re.MULTILINE)
    alternatives = text[text.index("Alternatives") :].splitlines()
    assert alternatives[0].split()[1:] == ["GPU", "host", "step", "cost"]


def test_a_step_that_disks_limit_says_what_they_take() -> None:
    disks = {"gpu": "A100-40GB", "gpus_per_node": 8, "nvme_read_bandwidth": "6GB/s", "nvme_write_bandwidth": "4GB/s"}
    nvme = {"device": "nvme", "nvme_path": "/nvme"}
    plan = plan_of(
        zero={"stage": 3, **dict.fromkeys(("offload_optimizer", "offload_param"), nvme)},
        cluster={**disks, "nvme": "4TB"},
    )
    text = " ".join(shown(plan).split())
    assert "limited by NVMe" in text
    assert re.search(r"states from NVMe and back take [\d.]+ min \([^)]+\) of it, whatever the batch", text), text
    assert re.search(r"parameters from NVMe take [\d.]+ min \([^)]+\) more than they overlap", text), text


@pytest.mark.parametrize(("accumulation", "is_limit"), [(1, True), (32, False)])
def test_a_step_that_cpu_adam_limits_says_that_a_larger_batch_spreads_it(accumulation: int, is_limit: bool) -> None:
    train = {"per_device_train_batch_size": 1, "gradient_checkpointing": True}
    text = " ".join(shown(plan_of(train={**train, "gradient_accumulation_steps": accumulation})).split())
    assert "CPU Adam takes" in text
    assert ("limited by CPU optimizer" in text) is is_limit
    assert ("a larger batch (`--batch-tokens`, more accumulation) spreads that time" in text) is is_limit


def test_a_step_that_collectives_limit_says_what_they_lack() -> None:
    cluster = {"gpu": "H100", "gpus_per_node": 8, "network_bandwidth": "100Gb/s"}
    text = " ".join(shown(plan_of(32, zero={"stage": 3}, cluster=cluster)).split())
    sent = r"a GPU sends [\d.]+ .iB a step: [\d.]+ .iB gradients, [\d.]+ .iB parameters Speed"
    network = r"100 Gbit/s a host; from \d+ Gbit/s on compute limits it"
    assert re.search(rf"limited by collectives {network} ([^()]+\([^()]+\) with [^()]+ )?{sent}", text), text
    one_host = {"gpu": "H100", "gpus_per_node": 8, "link_bandwidth": "5GB/s"}
    text = " ".join(shown(plan_of(zero={"stage": 3, "offload_optimizer": {"device": "cpu"}}, cluster=one_host)).split())
    sent = r"limited by collectives [^()]+\([^()]+\) with NVLink \(300 GB/s\) a GPU sends [\d.]+ TiB a step: [\d.]+ .iB gradients"
    assert re.search(sent, text), text


def test_rows_of_the_host_are_per_host_and_add_up() -> None:
    plan = plan_of(ranks=16, cluster={"gpus_per_node": 8, "gpu": "H100"})
    assert plan.memory is not None
    text = shown(plan, long=True)
    assert "on 2 hosts x 8" in text
    assert "Memory per host, 8 ranks" in text


def test_on_the_cpu_it_says_that_both_tables_are_one_memory() -> None:
    text = shown(plan_of(cluster={"gpu": "cpu", "gpus_per_node": 8}), long=True)
    assert "On the CPU accelerator this is host memory too" in text
    assert "limited by" not in text
    assert "Whether it fits is not known" in text


def test_what_does_not_fit_has_no_time_and_says_what_would() -> None:
    plan = plan_of(zero={"stage": 2}, cluster={"gpu": "H100", "host_memory": "2TB", "gpus_per_node": 8})
    text = shown(replace(plan, tokens=1e9, price=2.0))
    assert "Does not fit: GPU memory" in text
    assert "Would fit" in text
    assert "ZeRO-3, optimizer on CPU" in text[text.index("Would fit") :]
    for word in ("Step ", "Speed", "Run ", "Cost ", "tokens/s"):
        assert word not in text
    assert "0 errors, 0 warnings." in text  # the verdict says it


def test_a_run_that_trains_and_cannot_resume_says_so() -> None:
    plan = plan_of(cluster={"gpu": "H100", "host_memory": "1.3TB", "gpus_per_node": 8})
    text = shown(plan)
    assert re.search(r"^Nothing fits: host memory is too small, 1.3\d TiB of 1.18 TiB", text, re.MULTILINE)
    assert "while a checkpoint is read" in text
    assert "training itself fits" in " ".join(text.split())


def test_where_nothing_fits_it_says_what_would_do() -> None:
    text = shown(plan_of(cluster={"gpu": "H100", "host_memory": "100GB", "gpus_per_node": 8}))
    assert "Nothing fits: host memory" in text
    assert "of memory a host" in text
    assert re.search(r"Would be enough: [\d.]+ [GT]iB of memory a host", text)


def test_an_unknown_model_still_has_ranks_and_the_last_lines() -> None:
    text = shown(plan_of(model={"name_or_path": "nobody/nothing"}))
    assert "a model of unknown size in bf16" in text
    assert "Memory" not in text
    assert "Next: harness launch" in text


def test_unknown_ranks() -> None:
    text = shown(plan_of(ranks=None, cluster={}))
    assert "Ranks      unknown" in text
    assert "Plan: unknown ranks" in text


def offloaded(gpu: str = "H100", **sections: Any) -> str:
    plan = plan_of(cluster={"gpu": gpu, "host_memory": "2TB", "gpus_per_node": 8}, **sections)
    without = find_without_offload(plan.run, plan.capacity, plan.alternatives)
    return render_plan(replace(report_of(plan), without_offload=without), Style(), 110).replace("\n  ", " ")


def test_the_reason_for_offload_is_said() -> None:
    """70 B on eight GPUs needs it; 8 B does not."""
    text = offloaded()
    assert re.search(r"Without offload it needs \d+\.\d GiB of 79\.1 GiB a GPU \(ZeRO-3.*\)", text)
    tight = offloaded(model={"name_or_path": "Qwen/Qwen3-32B"})
    assert re.search(r"Without offload it is too tight: 7[5-9]\.\d GiB of 79\.1 GiB a GPU", tight)
    text = offloaded(model={"name_or_path": "meta-llama/Llama-3.1-8B"})
    assert re.search(r"Without offload it fits, too: \d+\.\d GiB of 79\.1 GiB a GPU \(ZeRO-", text)
    assert "Without offload" not in shown(plan_of(zero={"stage": 3}))


@pytest.mark.parametrize(
    ("gpu", "line"),
    [
        ("RTX4090", "PCIe slots of 16 lanes without NVLink or P2P: 19 GB/s between two is assumed"),
        ("L40S", "PCIe without NVLink: 26 GB/s between two is assumed (`cluster.link_bandwidth`)"),
        ("H100", ""),
    ],
)
def test_an_assumed_rate_of_pcie_is_said(gpu: str, line: str) -> None:
    text = shown(plan_of(cluster={"gpu": gpu, "gpus_per_node": 8}))
    assert line in text
    assert ("PCIe" in text) == bool(line)
    assert "PCIe" not in shown(plan_of(cluster={"gpu": gpu, "gpus_per_node": 8, "link_bandwidth": "20GB/s"}))


def test_what_fills_a_gpu_is_said_where_it_does_not_fit() -> None:
    text = shown(plan_of(zero={"stage": 2}))
    assert re.search(r"GPU memory is too small.*; the most is \d+\.\d GiB parameters, then", text.replace("\n  ", " "))


def test_fp16_is_said_for_a_gpu_without_bf16() -> None:
    cluster = {"gpu": "V100-32GB", "gpus_per_node": 8}
    assert "in fp16 (V100-32GB has no bf16)," in shown(plan_of(precision={"fp16": True}, cluster=cluster))
    assert "in fp16," in shown(plan_of(precision={"fp16": True}))
