# SPDX-License-Identifier: Apache-2.0
"""Findings about ops that do not compile. Needs nothing; milliseconds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness.errors import UserError
from harness.hostinfo.torch_extensions import describe_unwritable
from harness.launching.hosts.local_host import workers_folder
from harness.launching.ops import local_build
from harness.launching.ops.build_events import BuildProgress
from harness.launching.programs.software_checks import _check_compiled_ops, _check_one_pass
from harness.workers import op_builder


@pytest.mark.parametrize("accelerated", [True, False])
@pytest.mark.parametrize(
    ("op", "on_gpu", "else_"),
    [
        ("fused_adam", ("nvcc", "torch_adam: true"), "C++ compiler"),
        ("async_io", ("libaio", "nvcc", "offload to the CPU instead"), "libaio"),
        ("cpu_adam", ("C++ compiler",), "C++ compiler"),
        ("pin_memory", ("C++ compiler", "do not offload to nvme"), "C++ compiler"),
    ],
)
def test_the_fix_names_the_compiler_of_the_op(op, on_gpu, else_, accelerated):
    log, error = Path("ops.log"), "no CUDA_HOME"
    finding = local_build._build_failure_finding(op, 1, log, error, accelerated=accelerated, has_compiler=False)
    assert all(words in finding.fix.title for words in (on_gpu if accelerated else (else_,)))
    assert ("nvcc" in finding.fix.title) is (accelerated and "nvcc" in on_gpu)
    assert finding.notes == ("no CUDA_HOME", "the compiler's output is in ops.log")


def test_an_accelerator_without_the_op_is_named(monkeypatch):
    """DeepSpeed returns no builder, as for the CPU's shm op on an AMD GPU."""
    module = ModuleType("deepspeed.accelerator")
    module.get_accelerator = lambda: SimpleNamespace(
        create_op_builder={}.get,
        device_name=lambda: "cuda",
    )
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.accelerator", module)
    with pytest.raises(RuntimeError, match="takes the accelerator `cuda` here, which has no op `deepspeed_shm_comm`"):
        op_builder.get_builder("deepspeed_shm_comm")


def test_a_compiler_that_is_there_is_not_what_is_missing():
    finding = local_build._build_failure_finding("cpu_adam", 1, Path("ops.log"), "error", accelerated=False)
    assert "install" not in finding.fix.title


def test_a_folder_that_cannot_be_written_is_said_before_anything_compiles(tmp_path):
    """By the real builder, without torch; and by the doctor."""
    root = Path("/proc/harness-ops")  # nobody can write there, root neither
    context = SimpleNamespace(
        scripts=workers_folder(),
        signals=SimpleNamespace(raise_if_received=lambda: None),
        observer=SimpleNamespace(on_ops_check=print),
    )
    log = tmp_path / "ops.log"
    with pytest.raises(UserError) as refused:
        local_build.ensure_ops(["cpu_adam"], os.environ | {"TORCH_EXTENSIONS_DIR": str(root)}, log, context)
    (finding,) = refused.value.findings
    assert finding.gate == "EN010"
    assert "`/proc` cannot be written" in finding.message
    assert "TORCH_EXTENSIONS_DIR" in finding.fix.title
    assert log.read_text() == ""
    row = _check_compiled_ops(root)
    assert (row.state, row.means) == ("note", finding.message)
    remote = local_build.unwritable_finding("`/home/x` cannot be written: read-only file system", "worker-1")
    assert "on worker-1" in remote.message
    assert describe_unwritable(tmp_path / "new" / "folder") == ""
    assert list(tmp_path.iterdir()) == [log]


def test_a_launch_goes_on_without_the_op_of_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other ops are recorded, the next one is built, and the launcher sees no failure."""
    library = tmp_path / "lion.so"
    library.touch()

    def load(op: str, *_: object) -> ModuleType:
        if op == op_builder.OWN_OP:
            raise RuntimeError("no such header")
        module = ModuleType(op)
        module.__file__ = str(library)
        return module

    monkeypatch.setattr(op_builder, "load_op", load)
    records = op_builder.build_ops([op_builder.OWN_OP, "cpu_lion"], tmp_path, sys.stdout)
    assert set(records) == {"cpu_lion"}
    progress = BuildProgress()
    progress.feed(capsys.readouterr().out.encode(), SimpleNamespace(on_op_built=print))
    assert (progress.failed_op, progress.op) == (None, "")


def test_doctor_says_whether_the_op_of_one_pass_is_there(tmp_path: Path) -> None:
    assert "first launch" in _check_one_pass(tmp_path).value
    folder = tmp_path / op_builder.OWN_OP
    folder.mkdir()
    (folder / "build.ninja").touch()
    assert "first launch" in _check_one_pass(tmp_path).value
    (folder / f"{op_builder.OWN_OP}.so").touch()
    assert _check_one_pass(tmp_path).value == "compiled"
