# SPDX-License-Identifier: Apache-2.0
"""The page's file for SkyPilot: its script with a stand-in for `harness`, whose words the real command line takes.

That SkyPilot takes the file is tried by hand: `python -c "import sky; sky.Task.from_yaml('harness.sky.yaml')"`, 0.14.1.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from harness.cli.app import build_app
from harness.launching.setup.no_ssh import _RUN_ID
from harness.spec.host_selection import parse_hosts
from tests.support.markdown_blocks import ROOT, read_blocks

(TEXT,) = [block.text for block in read_blocks(ROOT / "docs" / "multi-node.md") if block.file == "harness.sky.yaml"]
TASK = "sky-2026-11-29-01-02-03-123456_a-cluster-with-a-long-name_1-0"


@pytest.mark.parametrize("node", [0, 1])
def test_each_node_starts_its_own_ranks(tmp_path: Path, node: int) -> None:
    task: dict[str, Any] = yaml.safe_load(TEXT)
    stub = tmp_path / "harness"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    env |= {"SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_NODE_RANK": str(node), "SKYPILOT_TASK_ID": TASK}
    done = subprocess.run(["bash", "-c", task["run"]], env=env, capture_output=True, text=True, check=True)
    command: Any = typer.main.get_command(build_app(["launch"]))
    given = command.commands["launch"].make_context("launch", done.stdout.splitlines()[1:]).params
    cluster, findings = parse_hosts(given["hosts"])
    assert not findings
    assert [(host.name, host.slots) for host in cluster.hosts] == [("10.0.0.1", 8), ("10.0.0.2", 8)]
    assert (given["no_ssh"], given["node_rank"]) == (True, node)
    assert _RUN_ID.fullmatch(given["run_id"])
    (mount,) = task["volumes"]
    assert f"launch.output_dir={mount}" in given["overrides"]
