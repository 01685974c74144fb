# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own engine on the simulated device, by the command: bytes, memory that is too small, nothing written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.launching.process.child_process import child_environ
from harness.plan.planner import make_plan
from harness.run.resolved_run import resolve_run
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
    "checkpoint": {"async_save": True, "save_steps": 1},
    "cluster": {"gpu": "H100-80GB", "host_memory": "1TB"},
    "launch": {"num_gpus": 4},
}

OPTIONS = ("--format", "json", "--trace", "step.json")


def run_plan(
    folder: Path, *options: str, spec: dict[str, Any] = SPEC, **environ: str
) -> subprocess.CompletedProcess[str]:
    (folder / "run.yaml").write_text(spec_as_yaml(spec), encoding="utf-8")
    command = [sys.executable, "-m", "harness", "simulate", "run.yaml", *options]
    changes = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), **environ}
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR") or str(Path.home() / ".cache" / "simulated_cuda_of_tests")
    (folder / "tmp").mkdir(exist_ok=True)
    with subprocess.Popen(
        command,
        cwd=folder,
        env=child_environ({"TORCH_EXTENSIONS_DIR": extensions, **changes}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=300)
        finally:  # its worker too, which holds the pipes
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("simulated")
    done = run_plan(folder, *OPTIONS)
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


def test_a_save_and_a_resume_are_counted(simulated: tuple[Path, dict[str, Any]]) -> None:
    """A save in the background copies all that it writes; a resume reads it into host memory."""
    body = simulated[1]
    checkpoint, states = body["simulation"]["checkpoint"], body["simulation"]["states"]
    whole = states["gpu.master"] + states["gpu.states"]
    assert checkpoint["written"]["optimizer states"] == checkpoint["read"]["optimizer states"] == whole
    assert checkpoint["way"] == "background"
    host = {row["phase"]: row for row in body["phases"] if row["tier"] == "host"}
    for phase in ("save", "resume"):
        assert whole <= host[phase]["simulated"] < whole + 4096


def test_the_seconds_of_a_step_add_up(simulated: tuple[Path, dict[str, Any]]) -> None:
    """Four micro-batches and a step, at a size where the host launches kernels for longer than they run."""
    time = simulated[1]["time"]
    exposed = sum(kind["exposed"] for kind in time["kinds"].values())
    assert (
        time["simulated_seconds"]
        == pytest.approx(exposed + time["host"])
        == pytest.approx(sum(time["phases"].values()))
    )
    assert list(time["phases"]) == ["forward", "backward", "step"]
    assert {"compute", "all-gather", "reduce"} <= set(time["kinds"])
    assert time["host"] > 0.8 * time["simulated_seconds"]
    assert all(0 <= kind["exposed"] <= kind["busy"] * 1.001 for kind in time["kinds"].values())


def test_the_trace_is_of_one_step(simulated: tuple[Path, dict[str, Any]]) -> None:
    """Tracks of streams and collectives, spans of all phases, lines of the model."""
    events = json.loads((simulated[0] / "step.json").read_text(encoding="utf-8"))["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"phases", "default"} < tracks
    assert any(track.startswith("collectives ") for track in tracks)
    slices = [event for event in events if event["ph"] == "X" and event["tid"]]
    assert {event["args"]["phase"] for event in slices} >= {"forward", "backward", "step"}
    assert any("modeling_llama.py:" in event["args"]["line"] for event in slices if event["name"] == "mm")


def test_nothing_is_left_but_the_kept_answer(simulated: tuple[Path, dict[str, Any]]) -> None:
    folder, body = simulated
    assert not list((folder / "tmp").iterdir())
    kept = list((folder / "cache").rglob("*.json"))
    assert len(kept) == 1
    files = json.loads(kept[0].read_text(encoding="utf-8"))["loaded"]["files"]
    for part in ("/deepspeed/runtime/zero/stage3.py", "/transformers/modeling_utils.py", "/lib/libtorch_cpu.so"):
        assert any(file.endswith(part) for file in files), part
    again = run_plan(folder, *OPTIONS)
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


def test_no_place_for_the_library_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_plan(tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "file" / "extensions"))
    assert done.returncode == 4
    assert "the compiled library has no place: Not a directory" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_model_without_configuration_is_one_finding(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    done = run_plan(tmp_path, spec={**SPEC, "model": {"name_or_path": "model", "tokenizer": "bytes"}})
    assert done.returncode == 2
    assert "config.json" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "tmp").iterdir())


def test_an_end_while_the_library_is_compiled_leaves_nothing(tmp_path: Path) -> None:
    compiler, request, extensions = tmp_path / "slow-compiler", tmp_path / "request.json", tmp_path / "extensions"
    compiler.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    compiler.chmod(0o755)
    request.write_text("{}", encoding="utf-8")
    environ = child_environ({"CXX": str(compiler), "TORCH_EXTENSIONS_DIR": str(extensions)})
    worker = Path(harness.__file__ or "").parent / "workers" / "simulation_worker.py"
    with subprocess.Popen([sys.executable, str(worker), str(request)], env=environ, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not list(extensions.rglob("*.so")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
    assert process.returncode == 143
    assert not [path for path in extensions.rglob("*") if path.is_file()]


def accept_ctrl_c() -> None:
    """A shell's background job, as `.ci/test` starts these tests, ignores it, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def has_process(folder: Path) -> bool:
    """Is there a process with the folder in its command?"""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                return True
    return False


@pytest.mark.parametrize("moment", [pytest.param("importing torch", marks=pytest.mark.nightly), "step 1 of 2"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, moment: str) -> None:
    """No temporary folder, no answer; and from the first step on no process that waits for a checkpoint to load."""
    (tmp_path / "run.yaml").write_text(spec_as_yaml(SPEC), encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    environ = child_environ({"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")})
    command = [sys.executable, "-m", "harness", "simulate", "run.yaml"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=accept_ctrl_c,  # noqa: PLW1509  (only sets a signal)
    ) as process:
        assert process.stderr is not None
        assert any(moment in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert not list((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "cache" / "deepspeed-harness").exists()
    deadline = time.monotonic() + 10
    while has_process(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.1)


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


@pytest.mark.parametrize(
    "degree", [pytest.param(1, marks=pytest.mark.nightly, id="data"), pytest.param(2, id="ulysses")]
)
def test_inputs_of_layers_in_host_memory_leave_the_device(tmp_path: Path, degree: int) -> None:
    """With layers that ZeRO-3 gathers as one, whose backward hooks make a view of each input."""
    layers, length, hidden = 12, 16_384, 256
    shape = {"hidden_size": hidden, "intermediate_size": 1024, "num_hidden_layers": layers}
    spec: dict[str, Any] = {
        **SPEC,
        "model": {"config": {**TINY, **shape}, "attn_implementation": "sdpa_varlen"},
        "data": {"train": "builtin:python-docs", "max_length": length * degree, "packing": True},
        "train": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "max_steps": 2,
            "gradient_checkpointing": True,
            "offload_activations": True,
            "loss_chunk_size": 1024,
        },
        "parallel": {"sequence_parallel_size": degree},
        "checkpoint": {},
    }
    done = run_plan(tmp_path, "--format", "json", spec=spec)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    rows = {(row["tier"], row["phase"]): row for row in body["phases"]}
    for phase in ("forward", "backward"):
        row = rows["gpu", phase]
        assert row["simulated"] == pytest.approx(row["planned"], rel=0.05), phase
        outputs = [size for line, size in row["lines"].items() if "checkpointing.py:627" in line and ":314 " in line]
        assert outputs, "the lines at which layers make their outputs have moved"
        assert sum(outputs) <= 3 * 2 * hidden * length
    for phase in ("backward", "step", "save"):  # DeepSpeed keeps the buffers
        row = rows["host", phase]
        assert row["simulated"] == pytest.approx(row["planned"], abs=hidden * length), phase
