# SPDX-License-Identifier: Apache-2.0
"""The plan as a value: its JSON, its alternatives, what is unknown. Needs nothing; a second."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from harness.check.plan_report import PlanReport
from harness.plan.plan_json import plan_json
from harness.plan.planner import make_plan
from harness.views.plan import render_plan
from harness.views.style import Style
from tests.support.plan_inputs import TINY, offload, plan_of, run_of


def test_json_has_what_scripts_read() -> None:
    body = json.loads(json.dumps(plan_json(plan_of(zero=offload("cpu")))))
    assert body["format_version"] == 1
    assert body["fits"] is True
    assert body["binding_constraint"] == "host memory"
    assert body["bottleneck"] == "CPU optimizer"
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
    ("data", "bf16", "fires"),
    [
        ({"train": "chats.jsonl"}, True, True),
        ({"train": [{"path": "pairs", "format": "alpaca"}]}, True, True),
        ({"train": "builtin:python-docstrings-chat"}, True, True),
        ({"train": "builtin:python-docs"}, True, False),
        ({"train": "texts.jsonl", "format": "text"}, True, False),
        ({"train": "chats.jsonl", "packing": True}, True, False),
        ({"train": "chats.jsonl", "pad_to_multiple_of": 64}, True, False),
        ({"train": "chats.jsonl"}, False, False),
    ],
)
def test_kernels_for_each_length_of_rows_are_told_of_bf16_on_a_cpu(
    data: dict[str, Any], bf16: bool, fires: bool
) -> None:
    plan = plan_of(cluster={"gpu": "cpu"}, data=data, precision={"bf16": bf16})
    assert [f.severity for f in plan.findings if f.gate == "MM015"] == ["info"] * fires
    assert not [f for f in plan_of(data=data, precision={"bf16": bf16}).findings if f.gate == "MM015"]


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
        ({"cluster": {"host_memory": "2"}}, "MM004", "2 bytes"),
        ({"cluster": {"host_memory": "99999999PB"}}, "MM004", "more than"),
        ({"cluster": {"nvme": 0}}, "MM004", "0 bytes"),
        ({"cluster": {"gpu_memory": "80"}}, "MM004", "80 bytes"),
        ({"cluster": {"gpu_memory": "900TB"}}, "MM004", "more than"),
        ({"cluster": {"gpu_memory_bandwidth": "3GB per second"}}, "MM004", "not a rate"),
        ({"cluster": {"gpu": "MyGPU", "gpu_memory": "80GB"}}, "MM003", "MyGPU"),
        ({"cluster": {"gpu": "MyGPU", "gpu_tflops": 400}}, "MM003", "MyGPU"),
    ],
)
def test_what_is_unknown_is_a_finding(sections: dict[str, Any], gate: str, word: str) -> None:
    plan = plan_of(**sections)
    assert gate in [f.gate for f in plan.findings]
    assert word in " ".join(f.message for f in plan.findings)
    assert not any("not affected" in note for f in plan.findings for note in f.notes), "the run may well be"
    json.dumps(plan_json(plan))


def test_a_gpu_of_ones_own_is_planned_with_its_figures() -> None:
    cluster = {"gpu": "MyGPU", "gpu_memory": "40GiB", "gpu_tflops": 400, "gpu_memory_bandwidth": "2TB/s"}
    plan = plan_of(cluster=cluster)
    assert not [f for f in plan.findings if f.gate in ("MM003", "MM004")]
    assert plan.device is not None
    assert (plan.device.name, plan.device.flops_16, plan.device.bandwidth) == ("MyGPU", 400e12, 2e12)
    assert plan.capacity.gpu == 40 << 30
    assert plan.time is not None


def test_own_figures_count_before_those_of_a_known_kind() -> None:
    known, changed = (plan_of(cluster={"gpu": "H100-80GB", **own}) for own in ({}, {"gpu_tflops": 494.5}))
    assert known.device is not None
    assert changed.device is not None
    assert changed.device.flops_16 == known.device.flops_16 / 2
    assert changed.device.memory == known.device.memory
    assert "`cluster`" in changed.device.source


def test_an_unknown_kind_says_what_would_describe_it() -> None:
    (finding,) = [f for f in plan_of(cluster={"gpu": "MyGPU"}).findings if f.gate == "MM003"]
    assert "gpu_memory" in " ".join(finding.notes)
    assert "gpu_tflops" in " ".join(finding.notes)


def test_a_family_of_which_nothing_was_run_says_so() -> None:
    model = {"name_or_path": None, "config": {"model_type": "smollm3"}}
    (finding,) = [f for f in plan_of(model=model).findings if f.gate == "MM006"]
    assert "no run of it was measured" in finding.message


def test_an_estimated_size_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.hostinfo.model_probe.package_version", lambda _: None)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    plan = plan_of(model={"name_or_path": None, "config": {"model_type": "brandnew", **sizes}})
    (finding,) = [f for f in plan.findings if f.gate == "MM006"]
    assert "estimate" in finding.message
    assert plan.memory is not None


def test_the_chosen_rung_has_the_numbers_of_the_plan() -> None:
    plan = plan_of(zero=offload("cpu"))
    current = next(alternative for alternative in plan.alternatives if alternative.is_current)
    assert plan.memory is not None
    assert (current.gpu_peak, current.host_peak, current.time) == (
        plan.memory.gpu_peak,
        plan.memory.host_peak,
        plan.time,
    )
    assert current.title == "ZeRO-3, optimizer on CPU"


def test_higher_stages_need_less_and_offload_moves_it_to_the_host() -> None:
    by_title = {alternative.title: alternative for alternative in plan_of("llama-3.1-8b").alternatives}
    gpu = [by_title[name].gpu_peak for name in ("no ZeRO (stage 0)", "ZeRO-1", "ZeRO-2", "ZeRO-3")]
    assert gpu == sorted(gpu, reverse=True)
    assert by_title["ZeRO-3, optimizer on CPU"].gpu_peak < by_title["ZeRO-3"].gpu_peak
    assert by_title["ZeRO-3, optimizer on CPU"].host_peak > by_title["ZeRO-3"].host_peak
    assert by_title["ZeRO-3, optimizer on NVMe"].nvme_bytes > 12 * 8e9


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


def test_a_cpu_run_without_hosts_is_compared_with_this_machine() -> None:
    run = run_of(TINY, ranks=2, cluster={"gpu": "cpu", "host_memory": None})
    fits, fails = (make_plan(run, local_memory=size) for size in (16 << 30, 256 << 20))
    assert (fits.fit.fits, fits.is_capacity_local, fits.capacity.host) == (True, True, 16 << 30)
    assert fails.fit.fits is False
    assert [f.gate for f in fails.findings] == ["MM005"]
    text = render_plan(PlanReport(fits, None, None, fits.findings), Style())
    assert re.search(r"^Host .* of 16.0 GiB per host \(this machine\)", text, re.MULTILINE)
    for other in ({"gpu": "cpu", "host_memory": "8GiB"}, {"gpu": "H100-80GB", "host_memory": None}):
        assert not make_plan(run_of(TINY, ranks=2, cluster=other), local_memory=16 << 30).is_capacity_local


def test_the_plan_of_lora_has_states_of_the_adapters_alone() -> None:
    lora = {"r": 16, "target_modules": "all-linear"}
    zero = {"stage": 2}
    whole = plan_of("llama-3.1-8b", ranks=1, zero=zero)
    plan = plan_of("llama-3.1-8b", ranks=1, zero=zero, model={"name_or_path": "llama-3.1-8b", "lora": lora})
    assert plan.trainable is not None
    assert (plan.trainable.num_trainable, plan.trainable.num_parameters) == (41_943_040, 8_030_261_248 + 41_943_040)
    assert plan.memory is not None
    assert whole.memory is not None
    assert plan.memory.model_state_bytes == pytest.approx(2 * 8_030_261_248 + 16 * 41_943_040, rel=0.01)
    assert whole.memory.model_state_bytes == 16 * 8_030_261_248
    assert "41.94 M of 8.07 B (0.52%)" in render_plan(PlanReport(plan, None, None, plan.findings), Style())
    assert plan_json(plan)["trainable_parameters"] == 41_943_040
    assert plan_json(whole)["trainable_parameters"] == 8_030_261_248


def test_the_machine_may_say_what_device_it_has_where_the_spec_does_not() -> None:
    run = run_of(TINY, ranks=2, cluster={"gpu": None})
    assert plan_json(make_plan(run, gpu="cpu"))["device_memory_is_host_memory"] is True
    assert plan_json(make_plan(run))["device"] is None
    assert plan_json(make_plan(run_of(TINY, ranks=2), gpu="cpu"))["device"] == "H100-80GB"


@pytest.mark.parametrize("target", ["W_pack", "c_attn", "query_key_value"])
def test_adapters_of_a_model_known_by_name_are_at_all_linear_layers(target: str) -> None:
    """Modules that a stand-in lacks are adapted, not nothing, and the name's finding says what was planned."""
    model = {"name_or_path": "/weights/Quokka-13B", "lora": {"r": 8, "target_modules": [target]}}
    named, all_linear = (
        make_plan(run_of("llama-3.1-8b", 8, zero={"stage": 2}, model=each), by_name=True)
        for each in (model, {**model, "lora": {"r": 8, "target_modules": "all-linear"}})
    )
    assert named.memory is not None
    assert all_linear.memory is not None
    assert named.memory.gpu_peak == all_linear.memory.gpu_peak
    assert [f.severity for f in named.findings if f.gate == "MM001"] == ["info"]
    assert make_plan(run_of("llama-3.1-8b", 8, zero={"stage": 2}, model=model)).memory is None


def test_a_model_known_by_name_has_its_tuned_defaults() -> None:
    """The search counted a chunked loss, and the plan of its best the logits of the whole micro-batch."""
    plan = make_plan(run_of(model={"name_or_path": "/weights/Quokka-13B"}, tuned_defaults=True), by_name=True)
    assert "train.loss_chunk_size" in {each.key for each in plan.run.tuned_defaults or ()}
