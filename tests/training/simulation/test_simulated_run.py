# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own engine on the simulated device, by the command: bytes, memory that is too small, nothing written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.launching.process.child_process import child_environ
from harness.plan.planner import make_plan
from harness.plan.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.spec.yaml_text import spec_as_yaml
from tests.support.plan_inputs import TINY

SPEC: dict[str, Any] = {
    "model": {"config": TINY},
    "data": {"train": "builtin:python-docs", "max_length": 64, "packing": True},
    "train": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 2},
    "optimizer": {"learning_rate": 1e-3},
    "precision": {"bf16": True},
    "zero": {"stage": 3},
    "cluster": {"gpu": "H100-80GB", "host_memory": "1TB"},
    "launch": {"num_gpus": 4},
}


def run_plan(
    folder: Path, *options: str, spec: dict[str, Any] = SPEC, **environ: str
) -> subprocess.CompletedProcess[str]:
    (folder / "run.yaml").write_text(spec_as_yaml(spec), encoding="utf-8")
    command = [sys.executable, "-m", "harness", "plan", "run.yaml", "--simulate", *options]
    changes = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), **environ}
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR") or str(Path.home() / ".cache" / "simulated_cuda_of_tests")
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        command,
        cwd=folder,
        env=child_environ({"TORCH_EXTENSIONS_DIR": extensions, **changes}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("simulated")
    done = run_plan(folder, "--format", "json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_states_are_the_planned_ones(simulated: tuple[Path, dict[str, Any]]) -> None:
    body = simulated[1]
    spec = RunSpec.model_validate({**SPEC, "tuned_defaults": True})
    memory = make_plan(resolve_run(spec, world_size=4)).memory
    assert memory is not None
    planned = {f"{item.tier}.{item.kind}": item.bytes for item in memory.items}
    states = body["simulation"]["states"]
    for name in ("gpu.parameters", "gpu.master", "gpu.states"):
        assert states[name] == planned[name], name


def test_gathers_and_collectives_of_stage_3(simulated: tuple[Path, dict[str, Any]]) -> None:
    body = simulated[1]["simulation"]
    assert {"all-gather", "reduce-scatter"} <= {*body["collectives"]["forward"], *body["collectives"]["backward"]}
    assert body["gathers"]["forward"]["ahead"] + body["gathers"]["forward"]["on_demand"] > 0
    assert {"load", "forward", "backward", "first step", "step", "evaluate"} <= set(body["peaks"])


def test_nothing_is_left_but_the_kept_answer(simulated: tuple[Path, dict[str, Any]]) -> None:
    folder, body = simulated
    assert not list((folder / "tmp").iterdir())
    kept = list((folder / "cache").rglob("*.json"))
    assert len(kept) == 1
    again = run_plan(folder, "--format", "json")
    assert json.loads(again.stdout) == body
    assert "importing" not in again.stderr


def test_too_little_memory_is_a_result(tmp_path: Path) -> None:
    small = {**SPEC, "cluster": {"gpu": "Tiny", "gpu_memory": "2GB", "gpu_tflops": 100, "host_memory": "1TB"}}
    small["model"] = {"config": {**TINY, "vocab_size": 2_000_000}}
    done = run_plan(tmp_path, spec=small)
    assert done.returncode == 1, done.stderr
    assert "Out of GPU memory in " in done.stdout
    assert "taken by" in done.stdout


def test_no_compiler_is_one_line(tmp_path: Path) -> None:
    done = run_plan(tmp_path, CXX="/nonexistent/c++", TORCH_EXTENSIONS_DIR=str(tmp_path / "extensions"))
    assert done.returncode == 4
    assert "no GPU can be simulated here: there is no C++ compiler `/nonexistent/c++`" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def accept_ctrl_c() -> None:
    """A shell's background job, as `.ci/test` starts these tests, ignores it, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(spec_as_yaml(SPEC), encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    environ = child_environ({"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")})
    command = [sys.executable, "-m", "harness", "plan", "run.yaml", "--simulate"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=accept_ctrl_c,  # noqa: PLW1509  (only sets a signal)
    ) as process:
        assert process.stderr is not None
        assert "importing torch" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert not list((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "cache" / "deepspeed-harness").exists()


def test_deepspeeds_own_allocator_rounds_no_block(tmp_path: Path) -> None:
    """The model is large enough for the rounding to stand out from the rows of a batch, which torch pins."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "pin_memory_backend": "native"}
    spec = {**SPEC, "model": {"config": {**TINY, "vocab_size": 50_000}}, "zero": zero}
    done = run_plan(tmp_path, "--format", "json", spec=spec)
    assert done.returncode == 0, done.stderr
    with_torch = RunSpec.model_validate({**spec, "zero": {**zero, "pin_memory_backend": "torch"}})
    memory = make_plan(resolve_run(with_torch)).memory
    assert memory is not None
    rounding = sum(item.bytes for item in memory.items if item.kind == "rounding")
    host = next(row for row in json.loads(done.stdout)["phases"] if (row["tier"], row["phase"]) == ("host", "step"))
    assert abs(host["simulated"] - host["planned"]) < rounding / 10
