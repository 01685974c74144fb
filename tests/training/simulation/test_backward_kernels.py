# SPDX-License-Identifier: Apache-2.0
"""The backward pass of an activation is one operator on the simulated device, as on a GPU. Needs torch; seconds."""

from __future__ import annotations

import subprocess
import sys

import torch

from harness.launching.process.child_process import child_environ

SCRIPT = """
from harness.runtime.simulation.native_library import load_native_library
load_native_library()
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from harness.runtime.simulation.shims import register_backward_kernels

class Names(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names.append(func._schema.name)
        return func(*args, **(kwargs or {}))

def backward():
    names.clear()
    with FakeTensorMode(), Names():
        x = torch.empty(4, device="cuda", requires_grad=True)
        torch.nn.functional.silu(x).backward(torch.empty(4, device="cuda"))
    return "aten::sigmoid" in names, "aten::silu_backward" in names

names = []
before = backward()
register_backward_kernels()
register_backward_kernels()
print(before, backward())
"""


def test_silu_is_one_operator() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=child_environ({}), capture_output=True, text=True, timeout=120, check=False)
    without = "(True, False)" if torch.version.cuda is None else "(False, True)"  # a CUDA build has the kernel itself
    assert done.stdout.strip() == f"{without} (False, True)", done.stdout + done.stderr
