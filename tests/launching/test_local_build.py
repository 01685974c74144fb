# SPDX-License-Identifier: Apache-2.0
"""Findings about ops that do not compile. Needs nothing; milliseconds."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness.launching.ops import local_build
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
    finding = local_build._build_failure_finding(op, 1, Path("ops.log"), "no CUDA_HOME", accelerated=accelerated)
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
