# SPDX-License-Identifier: Apache-2.0
"""The facts of this machine that decide what can be trained on it, each with its meaning and its fix.

It reads only; it installs and removes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from harness.hostinfo import machine
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.launching.ops.build_cache import find_stale_locks
from harness.launching.process import shm
from harness.launching.programs.doctor_rows import DoctorCheck
from harness.launching.programs.hardware_checks import check_devices, check_memory, check_processor
from harness.launching.programs.software_checks import check_compilers, check_software
from harness.units import format_bytes


def run_checks() -> tuple[DoctorCheck, ...]:
    """Every row, in the order in which people read them."""
    devices = machine.accelerators()
    used = bool(devices) and not machine.is_cpu_forced(os.environ)
    parts = (
        check_software(),
        check_compilers(accelerated=used),
        check_devices(devices, used=used),
        check_processor(cpu_only=not used),
        check_memory(),
        _check_host_programs(),
        _check_leftovers(),
    )
    return tuple(row for part in parts for row in part)


def _check_host_programs() -> Iterator[DoctorCheck]:
    for program, mend in (("pdsh", "apt install pdsh"), ("ssh", "apt install openssh-client")):
        path = shutil.which(program)
        means = "" if path else "one machine only: DeepSpeed starts other hosts with pdsh over ssh"
        yield DoctorCheck("other hosts", program, path or "none", "ok" if path else "note", means, "" if path else mend)


def _check_leftovers() -> Iterator[DoctorCheck]:
    locks = find_stale_locks(torch_extensions_dir())
    for lock in locks:
        yield DoctorCheck(
            "left-overs",
            "lock",
            str(lock),
            "note",
            "nobody holds it, and every use of this op waits for it",
            f"rm {lock}",
        )
    unused = [b for b in shm.find_buffers() if not b.in_use]
    if unused:
        size = format_bytes(sum(b.size for b in unused))
        mend = "rm " + " ".join(sorted({str(b.path)[: -len(b.path.name.rpartition("_")[2])] + "*" for b in unused}))
        yield DoctorCheck(
            "left-overs",
            "shared memory",
            f"{len(unused)} buffers, {size}",
            "note",
            "killed runs left them in /dev/shm",
            mend,
        )
    if not locks and not unused:
        yield DoctorCheck("left-overs", "locks and buffers", "none")
