# SPDX-License-Identifier: Apache-2.0
"""The plan as a value: its JSON, its alternatives, what is unknown. Needs nothing; a second."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.plan.plan_json import plan_json
from harness.plan.planner import make_plan
from tests.support.plan_inputs import TINY, offload, plan_of, run_of


def test_json_has_what_scripts_read() -> None:
    body = json.loads(json.dumps(plan_json(plan_of(zero=offload("cpu")))))
    assert body["format_version"] == 1
    assert body["fits"] is True
    assert body["binding_constraint"] == "host memory"
    assert body["bottleneck"] == "compute"
    assert 30e9 < body["gpu_peak_bytes"] < 60e9
    assert 1.2e12 < body["host_peak_bytes"] < 2e12
    a_sub_group = 4 * 1_020_000_000  # fp32 gradients of one at a time
    assert body["model_states_per_rank_bytes"] == pytest.approx(16 * 70_553_706_496 / 8 + a_sub_group, rel=0.001)
    assert body["step_seconds"] > 1
    assert body["nvme_bytes"] == 0
    assert {"tier", "what", "bytes_per_rank", "formula", "source", "phases"} <= set(body["rows"][0])
    assert sum(alternative["chosen"] for alternative in body["alternatives"]) == 1


def test_peaks_are_sums_of_the_rows() -> None:
    body = plan_json(plan_of(zero=offload("cpu")))
    rows = [row for row in body["rows"] if row["tier"] == "gpu" and body["gpu_peak_phase"] in row["phases"]]
    assert sum(row["bytes_per_rank"] for row in rows) == body["gpu_peak_bytes"]


def test_a_plan_that_is_too_large_is_a_warning_with_both_numbers() -> None:
    findings = [f for f in plan_of(zero=offload("cpu"), cluster={"host_memory": "1TB"}).findings if f.gate == "MM005"]
    assert [f.severity for f in findings] == ["warning"]
    assert "931.32 GiB" in findings[0].message
    assert findings[0].key == "cluster.host_memory"


@pytest.mark.parametrize(
    ("sections", "gate", "word"),
    [
        ({"model": {"name_or_path": "nobody/nothing"}}, "MM001", "catalogue"),
        ({"model": {"name_or_path": None, "config": {"model_type": "mamba"}}}, "MM001", "mamba"),
        ({"model": {"name_or_path": None}}, "MM001", "neither"),
        ({"train": {"per_device_train_batch_size": None}}, "MM002", "micro-batch"),
        ({"ranks": None, "cluster": {"gpus_per_node": None}}, "MM002", "ranks"),
        ({"cluster": {"gpu": "H101"}}, "MM003", "H101"),
        ({"cluster": {"host_memory": "much"}}, "MM004", "much"),
        ({"cluster": {"host_memory": -5}}, "MM004", "-5"),
    ],
)
def test_what_is_unknown_is_a_finding(sections: dict[str, Any], gate: str, word: str) -> None:
    plan = plan_of(**sections)
    assert gate in [f.gate for f in plan.findings]
    assert word in " ".join(f.message for f in plan.findings)
    json.dumps(plan_json(plan))


def test_the_chosen_rung_has_the_numbers_of_the_plan() -> None:
    plan = plan_of(zero=offload("cpu"))
    current = next(alternative for alternative in plan.alternatives if alternative.is_current)
    assert plan.memory is not None
    assert (current.gpu_peak, current.host_peak, current.time) == (
        plan.memory.gpu_peak,
        plan.memory.host_peak,
        plan.time,
    )
    assert current.title == "ZeRO-3, optimizer on cpu"


def test_higher_stages_need_less_and_offload_moves_it_to_the_host() -> None:
    by_title = {alternative.title: alternative for alternative in plan_of("llama-3.1-8b").alternatives}
    gpu = [by_title[name].gpu_peak for name in ("no ZeRO (stage 0)", "ZeRO-1", "ZeRO-2", "ZeRO-3")]
    assert gpu == sorted(gpu, reverse=True)
    assert by_title["ZeRO-3, optimizer on cpu"].gpu_peak < by_title["ZeRO-3"].gpu_peak
    assert by_title["ZeRO-3, optimizer on cpu"].host_peak > by_title["ZeRO-3"].host_peak
    assert by_title["ZeRO-3, optimizer on nvme"].nvme_bytes > 12 * 8e9


@pytest.mark.parametrize(
    ("parallel", "highest"), [({"pipeline_parallel_size": 2}, 1), ({"tensor_parallel_size": 2}, 3)]
)
def test_alternatives_that_the_gates_refuse_are_left_out(parallel: dict[str, int], highest: int) -> None:
    plan = plan_of("llama-3.1-8b", parallel=parallel, zero={"stage": 1})
    assert {alternative.settings.stage for alternative in plan.alternatives} == set(range(highest + 1))


def test_checkpointing_is_offered_when_it_is_off() -> None:
    titles = [
        alternative.title
        for alternative in plan_of("llama-3.1-8b", train={"gradient_checkpointing": False}).alternatives
    ]
    assert "ZeRO-3, gradient checkpointing" in titles


def test_the_machine_may_say_what_device_it_has_where_the_spec_does_not() -> None:
    run = run_of(TINY, ranks=2, cluster={"gpu": None})
    assert plan_json(make_plan(run, gpu="cpu"))["device_memory_is_host_memory"] is True
    assert plan_json(make_plan(run))["device"] is None
    assert plan_json(make_plan(run_of(TINY, ranks=2), gpu="cpu"))["device"] == "H100-80GB"
