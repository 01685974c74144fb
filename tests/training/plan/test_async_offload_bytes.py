# SPDX-License-Identifier: Apache-2.0
"""The rows of ZenFlow and SuperOffload against what DeepSpeed's functions allocate. Needs deepspeed; one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.plan.memory.memory_estimate import estimate_memory
from harness.plan.memory.zero_partitions import partition_model
from harness.plan.search.async_offload import AsyncOffload, SuperOffload, ZenFlow, with_async_offload
from tests.support.plan_inputs import TINY, plan_of, settings

JOB = Path(__file__).parents[1] / "jobs" / "count_async_offload.py"


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    command = [sys.executable, str(JOB), "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("name", "offload"), [("zenflow", ZenFlow(is_overlapped=True)), ("super_offload", SuperOffload())]
)
def test_rows_have_the_bytes_that_deepspeed_allocates(
    counts: dict[str, dict[str, int]], name: str, offload: AsyncOffload
) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    plan, run = plan_of(TINY, zero=zero), settings(TINY, zero=zero)
    assert plan.model is not None
    memory = estimate_memory(plan.model, run, plan.device)
    changed, _ = with_async_offload(memory, None, offload, plan.model, run)
    partitions = partition_model(plan.model, run)
    elements = {"bucket": max(partitions.sub_groups)}
    for kind, counted in counts[name].items():
        planned = sum(item.bytes for item in changed.items_of("host") if item.kind == kind)
        assert planned * 1000 == counted * elements.get(kind, partitions.partition_size), kind
