# SPDX-License-Identifier: Apache-2.0
"""The reason why no check could use a GPU here, before minutes are spent on it: as `harness launch` finds it."""

from __future__ import annotations

import os

from harness.hostinfo import machine
from harness.hostinfo.deepspeed_accelerator import find_accelerator_problem
from harness.hostinfo.torch_devices import find_torch_problem
from harness.hostinfo.torch_probe import probe_torch
from harness.launching.hosts.local_host import workers_folder
from harness.launching.setup.architecture_list import (
    VARIABLE,
    find_unreadable_architectures,
    strip_architecture_suffixes,
)


def find_device_problem() -> str:
    """The reason and the fix, in a sentence; empty where ranks get a GPU of NVIDIA's. A child process asks torch."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        return "DS_ACCELERATOR is `cpu`, so that ranks compute on the CPU: unset it, or give --rehearse"
    torch = probe_torch(workers_folder())
    problem = find_accelerator_problem(os.environ, torch, has_nvidia=bool(machine.accelerators()))
    if problem is None:
        problem = find_torch_problem(torch)
    value = os.environ.get(VARIABLE, "")
    if problem is None and find_unreadable_architectures(value):
        numbers = strip_architecture_suffixes(value)
        return f"DeepSpeed cannot read {VARIABLE}={value}: unset it" + (f", or set it to {numbers}" if numbers else "")
    return "" if problem is None else f"{problem.reason}: {problem.fix}; without a GPU give --rehearse"
