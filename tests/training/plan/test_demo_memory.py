# SPDX-License-Identifier: Apache-2.0
"""The plan of the demo on the CPU says within 10 % what its processes hold: real processes, a launch of 20 s each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness.facts.deepspeed_version import resolve_target
from harness.plan.planner import make_plan
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec
from tests.support.training.runtime_helpers import ROOT, launch, metric_lines

RANKS = 2
BOUND = 0.10
LIBRARY_PAGES = (64 if torch.version.cuda is None else 640) << 20
"""Resident pages of libraries that a rank may have on top: after the same imports RssFile is 89 MiB where the page cache
has lost the files, and 144 MiB right after an installation (benchmarks/LOG.md, 2026-11-27). A CUDA build brings 340 MiB more of libraries, and 130 MiB of their data.
"""
SHORT = ("train.max_steps=12", "eval.eval_steps=null", "data.eval_fraction=0.0", "export.at_end=false")
"""Gaps between blocks grow over the first steps, and hardly after ten (benchmarks/process_memory.py)."""


@pytest.mark.parametrize(
    "changes", [(), pytest.param(("model.lora.r=8",), marks=pytest.mark.nightly)], ids=["whole", "LoRA"]
)
def test_processes_hold_what_the_plan_of_the_demo_says(tmp_path: Path, changes: tuple[str, ...]) -> None:
    loaded = load_spec(str(ROOT / "ds_configs" / "demo.yaml"), (*SHORT, *changes), resolve_target())
    assert loaded.spec is not None
    run = with_tuned_defaults(resolve_run(loaded.spec, world_size=RANKS), ROOT)
    for name in ("logs", "status", "checkpoints"):
        (tmp_path / name).mkdir()
    (tmp_path / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (tmp_path / "ds_config.json").write_text(render_ds_config(run).json_text)
    result = launch(ROOT / "launch" / "train.py", "--run", str(tmp_path))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    memory = make_plan(run, ROOT, "cpu").memory
    assert memory
    phases = {line["phase"]: sum(line["memory_host_peak_bytes"]) for line in metric_lines(tmp_path, "memory")}
    held = {"load": phases["load"], "training": max(phases.values())}
    planned = {"load": memory.host_bytes_at("load"), "training": memory.host_bytes_at(memory.training_peak_phase)}
    print({name: (held[name] >> 20, planned[name] >> 20) for name in held})
    for name, value in planned.items():
        assert (1 - BOUND) * value < held[name] < (1 + BOUND) * value + RANKS * LIBRARY_PAGES, name
