# SPDX-License-Identifier: Apache-2.0
"""The facts of this machine that decide what can be trained on it, each with its meaning and its fix.

It installs and removes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from harness.hostinfo import machine
from harness.hostinfo.installed_deepspeed import installed_source_folder
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.launching.ops.build_cache import find_stale_locks
from harness.launching.process import shm
from harness.launching.programs.doctor_rows import DoctorCheck
from harness.launching.programs.hardware_checks import (
    ask_torch,
    check_devices,
    check_gpu_health,
    check_memory,
    check_processor,
)
from harness.launching.programs.software_checks import check_compilers, check_software
from harness.patches.patch_registry import PatchFacts, all_patches
from harness.patches.refused_patches import advise_release
from harness.units import format_bytes


def run_checks() -> tuple[DoctorCheck, ...]:
    """All rows, in the order of the output."""
    devices = machine.accelerators()
    used = bool(devices) and not machine.is_cpu_forced(os.environ)
    torch = ask_torch(used=used)
    parts = (
        check_software(),
        check_compilers(accelerated=used, cuda=torch.cuda if torch else None),
        check_devices(devices, torch, used=used),
        check_gpu_health() if used else (),
        check_processor(cpu_only=not used),
        check_memory(),
        _check_patches(),
        _check_host_programs(),
        _check_leftovers(),
    )
    return tuple(row for part in parts for row in part)


def _check_patches() -> Iterator[DoctorCheck]:
    if installed_source_folder() is None:
        return
    for patch in all_patches():
        changed = patch.find_changed_targets()
        value = f"{patch.kind}: {patch.summary}"
        if not changed:
            yield DoctorCheck("patches", patch.name, value)
            continue
        targets = ", ".join(f"`{name}` is {state}" for name, state in changed.items())
        is_for_all = not patch.may_be_skipped and patch.is_needed(PatchFacts())
        effect = "runs continue without it" if patch.may_be_skipped else "a run that needs it does not start"
        effect = "no run starts" if is_for_all else effect
        fix = advise_release(patch, changed)
        yield DoctorCheck(
            "patches", patch.name, value, "missing" if is_for_all else "note", f"{targets}: {effect}", fix
        )


def _check_host_programs() -> Iterator[DoctorCheck]:
    for program, fix in (("pdsh", "apt install pdsh"), ("ssh", "apt install openssh-client")):
        path = shutil.which(program)
        means = "" if path else "single-host runs only: DeepSpeed starts ranks on other hosts with pdsh over ssh"
        yield DoctorCheck("other hosts", program, path or "none", "ok" if path else "note", means, "" if path else fix)


def _check_leftovers() -> Iterator[DoctorCheck]:
    locks = find_stale_locks(torch_extensions_dir())
    for lock in locks:
        yield DoctorCheck(
            "left-overs",
            "lock",
            str(lock),
            "note",
            "no process holds it, and every use of this op waits for it",
            f"rm {lock}",
        )
    unused = [b for b in shm.find_buffers() if not b.in_use]
    if unused:
        size = format_bytes(sum(b.size for b in unused))
        fix = "rm " + " ".join(sorted({str(b.path)[: -len(b.path.name.rpartition("_")[2])] + "*" for b in unused}))
        yield DoctorCheck(
            "left-overs",
            "shared memory",
            f"{len(unused)} buffers, {size}",
            "note",
            "killed runs left them in /dev/shm",
            fix,
        )
    if not locks and not unused:
        yield DoctorCheck("left-overs", "locks and buffers", "none")
