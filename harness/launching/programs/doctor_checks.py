# SPDX-License-Identifier: Apache-2.0
"""The facts of this machine that decide what can be trained on it, each with its meaning and its fix.

It installs and removes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from harness.check.environment_fit import find_refused
from harness.facts.deepspeed_version import installed_source_folder
from harness.hostinfo import machine
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
from harness.patches.patch_registry import PatchFacts, all_patches, select_patch
from harness.patches.refused_patches import advise_release, refusal_of
from harness.patches.targets import forget_modules
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
    """`missing`: a plain run that saves is refused at some stage of ZeRO. Another refused patch limits the runs."""
    if installed_source_folder() is None:
        return
    plain = {state.patch.name for stage in range(4) for state in find_refused(PatchFacts(stage=stage))}
    for patch in all_patches():
        state = select_patch(patch._replace(is_needed=lambda _: True), PatchFacts(), "auto")
        value = f"{patch.kind}: {patch.summary}"
        if state.state == "applied":
            yield DoctorCheck("patches", patch.name, value)
        elif state.state == "skipped":
            means, fix = f"{state.reason}: runs continue without it", advise_release(patch, state.changed)
            yield DoctorCheck("patches", patch.name, value, "note", means, fix)
        else:
            refusal = refusal_of(state)
            means = "; ".join((refusal.message, *refusal.notes))
            fix = refusal.fix.title if refusal.fix else ""
            is_plain = patch.name in plain
            limits = "" if is_plain else patch.when
            yield DoctorCheck("patches", patch.name, value, "missing" if is_plain else "note", means, fix, limits)
    forget_modules()


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
