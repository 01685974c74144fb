# SPDX-License-Identifier: Apache-2.0
"""The patches of a run, and the refusal of one whose target has changed. Needs the training extra; seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.training.runtime_helpers import ROOT, rank_environment

CODE = """
from harness.patches import patch_registry as registry
from harness.errors import UserError
from harness.run.resolved_run import resolve_run
from harness.runtime.patch_selection import check_usable, resolve_patches
from harness.spec.run_spec import RunSpec

run = resolve_run(RunSpec.model_validate({"zero": {"stage": 0}, "precision": {"bf16": True}}), name="r", cluster=None)
config = {"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 0}, "bf16": {"enabled": True}}
every = registry.all_patches()

def change(name):
    patches = [p._replace(targets=(p.targets[0]._replace(digest="another"),)) if p.name == name else p for p in every]
    registry.all_patches = lambda: tuple(patches)

def outcome(use=None, **facts):
    try:
        states = resolve_patches(run, config, is_main_process=True, **facts)
        if use:
            check_usable(use)
    except UserError as error:
        (finding,) = error.findings
        return finding.gate, finding.message, finding.fix.title
    return states.to_json()

assert outcome()["stage0-hidden-step"] == "applied"
change("stage0-hidden-step")
gate, message, fix = outcome()
assert gate == "EN130" and "`stage0-hidden-step`" in message and "initialize_optimizer_states` is changed" in message
assert fix.startswith("install deepspeed 0.19.8, or set") and "EN055" in fix, fix
for name in ("nvme-checkpoint-states", "ulysses-attention", "pipeline-stages", "layer-checkpointing"):
    change(name)
    assert outcome()[name] == "not needed"
change("cpu-adam-resume")
assert outcome(is_resumed=False)["cpu-adam-resume"] == "not needed"
assert outcome(is_resumed=True)[0] == "EN130"
change("universal-checkpoint")
assert outcome(is_resumed=True)["universal-checkpoint"].startswith("refused: `deepspeed.checkpoint")
gate, message, fix = outcome("universal-checkpoint", is_resumed=True)
assert gate == "EN130" and fix == "install deepspeed 0.19.8", fix
change("timed-collectives")
assert outcome()["timed-collectives"].startswith("skipped: ")
"""


def test_refused_skipped_or_not_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=rank_environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "patch timed-collectives: skipped, `deepspeed.comm.comm:cdb` is changed" in done.stderr
