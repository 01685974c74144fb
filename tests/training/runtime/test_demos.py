# SPDX-License-Identifier: Apache-2.0
"""The demos run on two real ranks and print what moved and that the result equals one process. Seconds each."""

from __future__ import annotations

import os
import subprocess

import pytest

from harness.cli.demo import DemoName
from harness.interpreter import python_command

IN_CI = ("collectives", "zero")
EXPECTED = {
    "collectives": "all_reduce      [11.0, 22.0] [11.0, 22.0]",
    "zero": "reduce_scatter_tensor       3 calls      397,056 bytes, 198,528 sent by a rank (ring)",
    "data-parallel": "rank 0 waited",
    "pipeline": "stage 1: . F",
    "tensor-parallel": "of them on each rank",
    "offload": "states on the host:",
    "accumulation": "stage 2, K = 4:",
}


@pytest.mark.parametrize(
    "name", [each.value for each in DemoName if each.value in IN_CI or os.environ.get("HARNESS_NIGHTLY")]
)
def test_a_demo_prints_what_moved_and_equals_one_process(name: str) -> None:
    command = python_command("-m", "harness", "demo", name)
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert EXPECTED[name] in result.stdout
    assert "one process" in result.stdout
    assert "Traceback" not in result.stdout
