# SPDX-License-Identifier: Apache-2.0
"""The plan as text: what must be on it, and that it keeps to the width. Needs nothing; a second."""

from __future__ import annotations

from typing import Any

import pytest

from harness.plan.planner import Plan, make_plan
from harness.plan.resolved_run import resolve_run
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


def shown(plan: Plan, width: int = 110) -> str:
    return render_plan(plan, plan.findings, "harness launch a.yaml --dry-run", Style(), width)


def test_the_flagship() -> None:
    text = shown(plan_of())
    for expected in (
        "flagship: 70.55 B parameters in bf16, ZeRO-3, optimizer on CPU",
        "Ranks    8 = 8 data x 1 tensor x 1 pipeline, on 1 host x 8 H100-80GB",
        "Batch    256 = 1 per rank x 8 x 32 accumulation steps, at most 1,048,576 tokens per step",
        "(8 P / N) x 8",
        "Fits: GPU",
        "limited by compute",
        "> ZeRO-3, optimizer on CPU",
        "no: GPU memory",
        "Plan: 8 ranks, 0 errors, 0 warnings. Nothing was started and no host was contacted.",
        "Next: harness launch a.yaml --dry-run",
    ):
        assert expected in text


@pytest.mark.parametrize("width", [40, 80, 110, 200])
def test_lines_keep_to_the_width_and_to_ascii(width: int) -> None:
    text = shown(plan_of(), width)
    assert text.isascii()
    table = text[text.index("Memory at the peak") : text.index("Fits:")]
    assert max(map(len, table.splitlines())) <= max(width, 80)
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_rows_of_the_host_are_per_host_and_add_up() -> None:
    plan = plan_of(ranks=16, cluster={"gpus_per_node": 8, "gpu": "H100"})
    assert plan.memory is not None
    text = shown(plan)
    assert "on 2 hosts x 8" in text
    assert "Memory per host, 8 ranks" in text


def test_on_the_cpu_it_says_that_both_tables_are_one_memory() -> None:
    text = shown(plan_of(cluster={"gpu": "cpu", "gpus_per_node": 8}))
    assert "On the CPU accelerator this is host memory too" in text
    assert "limited by" not in text
    assert "Whether it fits is not known" in text


def test_what_does_not_fit_says_so_with_a_warning() -> None:
    text = shown(plan_of(cluster={"gpu": "H100", "host_memory": "1TB", "gpus_per_node": 8}))
    assert "Does not fit: GPU" in text
    assert "1 warning." in text


def test_an_unknown_model_still_has_ranks_and_the_last_lines() -> None:
    text = shown(plan_of(model={"name_or_path": "nobody/nothing"}))
    assert "a model of unknown size in bf16" in text
    assert "Memory" not in text
    assert "Next: harness launch" in text


def test_unknown_ranks() -> None:
    text = shown(plan_of(ranks=None, cluster={}))
    assert "Ranks    unknown" in text
    assert "Plan: unknown ranks" in text
