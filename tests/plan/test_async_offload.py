# SPDX-License-Identifier: Apache-2.0
"""ZenFlow and SuperOffload in the plan: where there is a row, what it needs, and what of the CPU step it hides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.check.check_file import check_file
from harness.facts.devices import DEVICES
from harness.plan.memory.memory_estimate import Capacity
from harness.plan.planner import Plan, make_plan
from harness.plan.search.async_offload import (
    SuperOffload,
    ZenFlow,
    list_async_offloads,
    super_offload_exposed_seconds,
    zenflow_exposed_seconds,
)
from harness.spec.yaml_text import spec_as_yaml
from tests.support.plan_inputs import plan_of, run_of, settings

CPU = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
ZENFLOW = {"overlap_step": True, "select_strategy": "step", "select_interval": 4, "update_interval": 4}
GRACE = replace(DEVICES["H100-80GB"], name="GH200-96GB", pcie=450e9)


def plain_plan(**sections: Any) -> Plan:
    """The ordinary offload, without the harness's patches, which leave both alone."""
    switches = {"cpu-offload-single-grad": "off", "one-pass-adam": "off"}
    return plan_of("llama-3.1-8b", zero=CPU, launch={"patches": switches}, **sections)


def with_block(block: dict[str, Any], **sections: Any) -> Plan:
    return plan_of("llama-3.1-8b", zero=CPU, deepspeed={"zero_optimization": block}, **sections)


def bytes_of(plan: Plan, kind: str) -> int:
    assert plan.memory is not None
    return sum(item.bytes for item in plan.memory.items_of("host") if item.kind == kind)


def test_a_spec_with_zenflow_is_planned_with_it() -> None:
    plain, zenflow = plain_plan(), with_block({"zenflow": ZENFLOW})
    assert zenflow.title == "ZeRO-3, optimizer on CPU with ZenFlow"
    assert bytes_of(zenflow, "states") == 2 * bytes_of(plain, "states")
    assert bytes_of(zenflow, "staging") == bytes_of(plain, "master") == bytes_of(zenflow, "master")
    assert bytes_of(zenflow, "master_gradients") == 2 * bytes_of(plain, "master")
    assert plain.time is not None
    assert zenflow.time is not None
    assert zenflow.time.seconds < plain.time.seconds
    assert zenflow.time.range[1] < plain.time.range[1]
    assert sum(part.exposed for part in zenflow.time.parts) == pytest.approx(zenflow.time.seconds)
    current = [row for row in zenflow.alternatives if row.is_current]
    assert [(row.title, row.host_peak) for row in current] == [(zenflow.title, zenflow.memory.host_peak)]  # type: ignore[union-attr]
    assert zenflow.async_offloads == ()


def test_without_overlap_zenflow_saves_no_time() -> None:
    plain = plain_plan()
    zenflow = with_block({"zenflow": {**ZENFLOW, "overlap_step": False}})
    assert zenflow.time is not None
    assert plain.time is not None
    assert zenflow.time.seconds == plain.time.seconds
    assert bytes_of(zenflow, "states") == bytes_of(plain, "states")


def test_the_states_of_the_gpus_share_may_wait_on_the_host() -> None:
    here, there = with_block({"zenflow": ZENFLOW}), with_block({"zenflow": {**ZENFLOW, "offload": True}})
    assert here.memory is not None
    assert there.memory is not None
    assert here.memory.gpu_peak > there.memory.gpu_peak
    share = [item for item in here.memory.items_of("gpu") if item.kind == "states"]
    assert [item.bytes for item in share] == [pytest.approx(0.1 * bytes_of(here, "master"), rel=1e-6)]


@pytest.mark.parametrize(("norm", "title"), [(0.0, "SuperOffload"), (1.0, "SuperOffload, gradients clipped")])
def test_super_offload_hides_nothing_of_clipped_gradients(norm: float, title: str) -> None:
    plain = plain_plan(train={"max_grad_norm": norm})
    block = {"offload_optimizer": {"super_offload": True}, "sub_group_size": 100_000_000}
    offloaded = with_block(block, train={"max_grad_norm": norm})
    assert offloaded.title.endswith(f" with {title}")
    assert plain.time is not None
    assert offloaded.time is not None
    assert (offloaded.time.seconds < plain.time.seconds) is (norm == 0)
    assert bytes_of(offloaded, "master_gradients") == bytes_of(plain, "master")


def test_rows_are_listed_where_deepspeed_trains_so() -> None:
    plan = plan_of("llama-3.1-8b", zero=CPU)
    assert [row.title for row in plan.async_offloads] == ["ZeRO-3, optimizer on CPU with ZenFlow (no launch)"]
    assert plan_of("llama-3.1-8b", zero=CPU, cluster={"gpu": "cpu"}).async_offloads == ()
    assert plan_of("llama-3.1-8b", zero=CPU, optimizer={"type": "lion"}).async_offloads == ()
    lion = {"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}
    assert plan_of("llama-3.1-8b", zero=CPU, deepspeed=lion).async_offloads == ()
    assert plan.model is not None
    run, capacity = settings("llama-3.1-8b", zero=CPU), Capacity(GRACE.memory, 480 * 10**9)
    titles = [row.title for row in list_async_offloads(plan.model, run, GRACE, capacity)]
    assert titles[1:] == ["ZeRO-3, optimizer on CPU with SuperOffload"]
    tensor = replace(run, tensor_parallel_size=2, data_parallel_size=4)
    assert list_async_offloads(plan.model, tensor, GRACE, capacity) == ()


def spec_with(stage: int, zero: dict[str, Any]) -> str:
    raw = run_of("meta-llama/Llama-3.1-8B", zero={**CPU, "stage": stage, "overlap_comm": True}).spec.model_dump(
        mode="json", exclude_unset=True
    )
    raw["data"] = {"train": "builtin:python-docs", "max_length": 2048}
    raw["train"]["max_steps"] = 10
    raw["deepspeed"] = {"zero_optimization": zero}
    return spec_as_yaml(raw)


@pytest.mark.parametrize(
    ("block", "launching"),
    [({"zenflow": ZENFLOW}, False), ({"offload_optimizer": {"super_offload": True}}, True)],
)
def test_the_gates_accept_each_row_at_stage_3(block: dict[str, Any], launching: bool) -> None:
    checked = check_file("x.yaml", text=spec_with(3, block), world_size=8, launching=launching)
    assert [finding.message for finding in checked.report.findings if finding.is_error] == []
    assert checked.run is not None
    assert make_plan(checked.run).async_offload is not None


def test_no_launch_of_zenflow() -> None:
    checked = check_file("x.yaml", text=spec_with(3, {"zenflow": ZENFLOW}), world_size=8, launching=True)
    errors = [finding.message for finding in checked.report.findings if finding.is_error]
    assert [message for message in errors if "training loop does not support it" in message] == errors


def test_the_gates_refuse_zenflow_below_stage_3() -> None:
    checked = check_file("x.yaml", text=spec_with(2, {"zenflow": ZENFLOW}), world_size=8, launching=True)
    assert "ZR030" in {finding.gate for finding in checked.report.findings if finding.is_error}
    assert checked.run is not None
    assert make_plan(checked.run).async_offload is None


@pytest.mark.parametrize(("compute", "least", "most"), [(100.0, 1.8, 2.0), (0.0, 10.0, 10.0), (5.0, 4.9, 5.1)])
def test_zenflow_hides_a_step_behind_the_next(compute: float, least: float, most: float) -> None:
    """Of 10 s: 8 of 44 bytes are unscaled on the training thread, the rest hides behind the compute that there is."""
    assert least <= zenflow_exposed_seconds(ZenFlow(is_overlapped=True), 10.0, compute) <= most
    assert zenflow_exposed_seconds(ZenFlow(), 10.0, compute) == 10.0


def test_super_offload_waits_for_the_last_sub_group() -> None:
    unscale = 10.0 * 8 / 44
    exposed = super_offload_exposed_seconds(SuperOffload(is_clipped=False), 10.0, 1000.0, 8)
    assert exposed == pytest.approx(unscale + (10.0 - unscale) / 8)
    assert super_offload_exposed_seconds(SuperOffload(is_clipped=False), 10.0, 1000.0, 1) == pytest.approx(10.0)
    assert super_offload_exposed_seconds(SuperOffload(is_clipped=True), 10.0, 1000.0, 8) == 10.0
