# SPDX-License-Identifier: Apache-2.0
"""Ranks with cores of their own: the words of the command, what stops it, and a real run under numactl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.launching.setup import core_binding
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec
from tests.launching.test_launch_plan import HERE
from tests.support.launch_process import Launched, clean_up

pytestmark = pytest.mark.training

CORES = sorted(os.sched_getaffinity(0))[:2]
SPEC = """\
name: bound
model:
  config: {model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}
  tokenizer: bytes
data: {train: "builtin:python-docs", max_length: 64, eval_fraction: 0}
train: {max_steps: 400, per_device_train_batch_size: 1, seed: 1}
optimizer: {learning_rate: 0.001}
zero: {stage: 1}
checkpoint: {save_at_end: false}
launch: {num_gpus: 2, output_dir: OUTPUT, master_port: PORT, bind_cores_to_rank: true, bind_core_list: "CORES"}
"""


def run_of(**launch: Any) -> ResolvedRun:
    return resolve_run(RunSpec.model_validate({"launch": {"num_gpus": 2, **launch}}), world_size=2)


def test_the_words_of_the_command() -> None:
    assert core_binding.core_binding_args(run_of().spec.launch) == []
    assert core_binding.core_binding_args(run_of(bind_core_list="0-3").spec.launch) == []
    assert core_binding.core_binding_args(run_of(bind_cores_to_rank=True).spec.launch) == ["--bind_cores_to_rank"]
    both = core_binding.core_binding_args(run_of(bind_cores_to_rank=True, bind_core_list="0-3,8").spec.launch)
    assert both == ["--bind_cores_to_rank", "--bind_core_list=0-3,8"]


def test_what_this_machine_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = pytest.importorskip("psutil")
    run = run_of(bind_cores_to_rank=True)
    monkeypatch.setattr(core_binding, "find_program", lambda _: None)
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 1)
    here = replace(HERE, environ={"KMP_AFFINITY": "compact"})
    found = list(core_binding.check_core_binding(run.spec.launch, here, 2))
    assert [f.gate for f in found] == ["EN014"] * 3
    assert "numactl" in found[0].message
    assert "2 ranks" in found[1].message
    assert "KMP_AFFINITY" in found[2].message
    assert not list(core_binding.check_core_binding(run.spec.launch, here, None))
    assert not list(core_binding.check_core_binding(run_of().spec.launch, here, 2))


def may_bind() -> bool:
    """A container may forbid it."""
    words = ["numactl", "-m", "0", "-C", str(CORES[0]), "true"]
    return shutil.which("numactl") is not None and subprocess.run(words, check=False).returncode == 0


@pytest.mark.skipif(not may_bind(), reason="numactl is missing or may not bind, needs root")
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_each_rank_has_its_own_core(tmp_path: Path) -> None:
    """And one thread, as DeepSpeed says."""
    run = Launched(tmp_path, SPEC.replace("CORES", ",".join(map(str, CORES))))
    try:
        assert run.wait_until(lambda: all(run.status(rank).get("state") == "running" for rank in (0, 1)), 240), (
            run.text.read_text()[-3000:]
        )
        pids = [int(str(run.status(rank)["pid"])) for rank in (0, 1)]
        assert [os.sched_getaffinity(pid) for pid in pids] == [{core} for core in CORES]
        for pid in pids:
            assert b"OMP_NUM_THREADS=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
        launch = json.loads((run.run_dir / "launch.json").read_text())
        assert "--bind_cores_to_rank" in launch["argv"]
        assert "OMP_NUM_THREADS" not in {row["name"] for row in launch["environment"]}
    finally:
        clean_up([run])
