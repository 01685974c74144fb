# SPDX-License-Identifier: Apache-2.0
"""A launch finds its model once, plans once, and chooses its tuned defaults once."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from typer.testing import CliRunner

from harness.cli.app import build_app

_ROOT = Path(__file__).parents[2]
_ONCE = {
    "find_model": "facts/model_lookup.py",
    "make_plan": "plan/planner.py",
    "with_located_paths": "spec/named_paths.py",
    "render_with_tuned_defaults": "render/ds_config.py",
}


def test_a_dry_run_looks_each_thing_up_once(tmp_path, monkeypatch):
    shutil.copy(_ROOT / "ds_configs" / "demo.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_name
        if event == "call" and name in _ONCE and frame.f_code.co_filename.endswith(_ONCE[name]):
            calls[name] += 1

    sys.setprofile(count)
    try:
        result = CliRunner().invoke(build_app(["launch"]), ["launch", "demo.yaml", "--dry-run"])
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0, result.output
    assert calls == dict.fromkeys(_ONCE, 1)
