# SPDX-License-Identifier: Apache-2.0
"""The race detector: sequences whose order is known, and DeepSpeed's engine under the shipped recipes in miniature.

Of the twenty faults of `tests/simulation/seeded_faults.py`, seeded one at a time, each is found in at least one of its
ways: 17 as races, 3 as a tensor on the wrong device. Some need more than 2 layers of width 64: those of NVMe tensors of
1 MiB, and `activation-offloaded-before-computed` 3 layers, since `transformers` reads a mask on the host
(`masking_utils._ignore_causal_mask_sdpa`) between the first layer's input and its copy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.launching.process.child_process import child_environ
from tests.support.training.simulation_requests import small_request
from tests.training.jobs import race_sequences

ROOT = Path(__file__).parents[3]
RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "stage 0": ("pretrain-tiny", ("zero.stage=0",)),
    "stage 1": ("pretrain-tiny", ()),
    "stage 2, offloaded activations, packing": ("llama-3.1-8b-zero2-two-nodes", ("train.offload_activations=true",)),
    "stage 3": ("llama-3.1-8b-zero3", ()),
    "stage 3, CPU optimizer": ("llama-3.1-70b-zero3-cpu-offload", ()),
    "stage 3, NVMe optimizer and parameters": ("llama-3.1-70b-zero3-nvme-all", ()),
    "pipeline": ("pipeline-tiny", ()),
}
FIRST_SIDES = {
    "two_streams": "unordered: write zeros by default stream, read add by stream",
    "ranges_of_one_buffer": "unordered: write fill_ by default stream, write fill_ by stream",
    "readers_on_two_streams": "unordered: read add by stream, write zero_ by default stream",
    "event_on_another_stream": "unordered: write fill_ by default stream, read add by stream",
    "copy_to_page_locked": "unordered: write copy_ by default stream, read sum by host",
    "copy_to_pageable": "unordered: write _to_copy by default stream, read add by host",
    "page_locked_rows_filled_again": "unordered: read _to_copy by default stream, write fill_ by host",
    "pageable_rows_filled_again": "unordered: read _to_copy by default stream, write fill_ by host",
    "boolean_index": "unordered: write copy_ by default stream, write fill_ by host",
    "collective_waited_for": "unordered: write _allgather_base_ by collectives, read add by default stream",
    "earlier_collective": "unordered: write _allgather_base_ by collectives, read add by default stream",
    "blocking_collective_on_a_side_stream": "unordered: write allreduce_ by stream, read add by default stream",
    "memory_of_another_stream": "reused: read add by stream, write ones by default stream",
    "memory_freed_before_the_order": "reused: read add by stream, write zeros by default stream",
    "memory_allocated_for_another_stream": "reused: write earlier use of this memory by default stream, write fill_ by stream",
    "disk_read": "unordered: write async_pread by disk, read add by host",
    "disk_write_of_a_copy": "unordered: write copy_ by default stream, read async_pwrite by disk",
    "two_requests_of_a_handle": "unordered: read async_pwrite by disk, write async_pread by disk",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Races by case; a case that failed is its error."""
    requests = tmp_path_factory.mktemp("races") / "requests.json"
    bodies = {name: small_request(recipe, overrides, races=True) for name, (recipe, overrides) in RECIPES.items()}
    requests.write_text(json.dumps(bodies), encoding="utf-8")
    command = [sys.executable, str(ROOT / "tests/training/jobs/race_cases.py"), str(requests)]
    environ = child_environ({"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": ""})
    environ.pop("DS_ACCELERATOR")
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=540, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    return {line["case"]: line.get("answer", line.get("error")) for line in lines}


@pytest.mark.parametrize("name", race_sequences.SEQUENCES)
def test_a_sequence_has_a_race_only_without_its_order(answers: dict[str, Any], name: str) -> None:
    """Both sides are named, with the lines of the sequence."""
    sequences = answers["sequences"]
    assert sequences[name] == []
    race = sequences[f"{name} without"][0]
    assert _describe(race) == FIRST_SIDES[name]
    assert "race_sequences.py:" in race["second"]["line"]
    assert "race_sequences.py:" in race["first"]["line"] or race["first"]["line"] == "torch's allocator"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_no_race(answers: dict[str, Any], name: str) -> None:
    """DeepSpeed's engine, the harness's stepper and patches: two steps of two micro-batches, and an evaluation."""
    assert answers[name]["races"] == []
    assert bool(answers[name]["disk"]) == ("NVMe" in name)


def _describe(race: dict[str, Any]) -> str:
    sides = []
    for side in (race["first"], race["second"]):
        stream = side["stream"]
        name = next(
            (
                short
                for short in ("default stream", "collectives", "stream", "host", "disk")
                if stream.startswith(short)
            ),
            stream,
        )
        sides.append(f"{side['action']} {side['operator']} by {name}")
    return f"{race['kind']}: {', '.join(sides)}"
