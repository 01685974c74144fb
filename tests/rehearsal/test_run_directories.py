# SPDX-License-Identifier: Apache-2.0
"""The run directories of a rehearsal: the newest comes last, whatever its name."""

from __future__ import annotations

import os
from pathlib import Path

from harness.launching.programs.rehearsal_runner import find_runs_with


def test_the_link_to_the_latest_run_is_none_of_them(tmp_path: Path) -> None:
    """`latest` sorts after `host-memory` and before `llama`: a rank is sought by the directory's own name."""
    runs = tmp_path / "runs"
    for age, name in enumerate(("zebra-1", "host-memory-1", "demo-1")):
        (runs / name).mkdir(parents=True)
        (runs / name / "launch.json").write_text("{}")
        os.utime(runs / name / "launch.json", (100 + age, 100 + age))
    (runs / "latest").symlink_to("demo-1")
    (runs / "empty").mkdir()
    assert [run.name for run in find_runs_with(tmp_path, "launch.json")] == ["zebra-1", "host-memory-1", "demo-1"]
    assert find_runs_with(tmp_path, "checkpoints/step-00000001/manifest.json") == []


def test_nothing_was_begun_yet(tmp_path: Path) -> None:
    assert find_runs_with(tmp_path, "launch.json") == []
