"""The facts of this machine that decide what can be trained on it, each with what it means and how to mend it.

Looks only; installs and removes nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.facts.deepspeed_version import VERIFIED_RANGE
from harness.hostinfo import machine
from harness.hostinfo.torch_devices import TorchDevices, find_torch_problem
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.hostinfo.torch_probe import probe_torch
from harness.interpreter import python_command
from harness.launching.hosts.local_host import scripts_folder
from harness.launching.ops.local_build import find_stale_locks
from harness.launching.process import shm
from harness.units import format_bytes

CheckState = Literal["ok", "note", "missing"]
_SHM_PER_RANK = 66 * 2**20
_FP16_PROBE = "import torch; print(torch.ops.mkldnn._is_mkldnn_fp16_supported())"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One fact. `note`: something will not work or is worth knowing; `missing`: no training can start without it."""

    area: str
    name: str
    value: str
    state: CheckState = "ok"
    means: str = ""
    mend: str = ""


def run_checks() -> tuple[DoctorCheck, ...]:
    """Every row, in the order in which people read them."""
    devices = machine.accelerators()
    used = bool(devices) and not machine.is_cpu_forced(os.environ)
    parts = (
        _check_software(),
        _check_compilers(accelerated=used),
        _check_devices(devices, used=used),
        _check_processor(cpu_only=not used),
        _check_memory(),
        _check_host_programs(),
        _check_leftovers(),
    )
    return tuple(row for part in parts for row in part)


def _check_software() -> Iterator[DoctorCheck]:
    optimised = bool(sys.flags.optimize or os.environ.get("PYTHONOPTIMIZE"))
    yield DoctorCheck(
        "software",
        "python",
        f"{platform.python_version()} ({sys.executable})",
        "missing" if optimised else "ok",
        "assertions are off, DeepSpeed would train what it should refuse" if optimised else "",
        "unset PYTHONOPTIMIZE and start Python without -O" if optimised else "",
    )
    yield DoctorCheck(
        "software", "harness", machine.package_version("deepspeed-harness") or "not installed, runs from its folder"
    )
    for name in ("torch", "deepspeed", "transformers", "accelerate", "safetensors"):
        version = machine.package_version(name)
        if version is None:
            needed = name in {"torch", "deepspeed", "transformers", "safetensors"}
            yield DoctorCheck(
                "software",
                name,
                "not installed",
                "missing" if needed else "note",
                "no training; validating, planning and rendering work" if needed else "",
                "pip install 'deepspeed-harness[train]'",
            )
        else:
            yield _check_version(name, version)


def _check_version(name: str, version: str) -> DoctorCheck:
    if name == "deepspeed" and version != VERIFIED_RANGE[1]:
        return DoctorCheck(
            "software", name, version, "note", f"the gates were run on {VERIFIED_RANGE[1]}; they know which rules moved"
        )
    return DoctorCheck("software", name, version)


def _check_compilers(*, accelerated: bool) -> Iterator[DoctorCheck]:
    compiler = machine.cxx_compiler()
    yield DoctorCheck(
        "compiling",
        "C++ compiler",
        compiler or "none",
        "ok" if compiler else "missing",
        "" if compiler else "DeepSpeed compiles its optimizers on first use",
        "" if compiler else "apt install g++",
    )
    beside = Path(sys.executable).parent
    ninja = shutil.which("ninja", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    yield DoctorCheck(
        "compiling",
        "ninja",
        ninja or "none",
        "ok" if ninja else "missing",
        "" if ninja else "torch builds extensions with it",
        "" if ninja else "pip install ninja",
    )
    if accelerated:
        yield _check_nvcc(machine.find_nvcc())
    has_aio = machine.can_link_libaio()
    yield DoctorCheck(
        "compiling",
        "libaio",
        "headers and library" if has_aio else "none",
        "ok" if has_aio else "note",
        "offload to nvme" if has_aio else "no offload to nvme",
        "" if has_aio else "apt install libaio-dev",
    )
    make = shutil.which("make")
    yield DoctorCheck(
        "compiling",
        "make",
        make or "none",
        "ok" if make else "note",
        "" if make else "`make demo` and `make test` need it",
    )
    yield DoctorCheck("compiling", "compiled ops", str(torch_extensions_dir()))


def _check_nvcc(nvcc: str | None) -> DoctorCheck:
    return DoctorCheck(
        "compiling",
        "nvcc",
        nvcc or "none",
        "ok" if nvcc else "note",
        "" if nvcc else "DeepSpeed cannot compile its Adam for these devices",
        "" if nvcc else "install the CUDA toolkit of the version that torch was built for and set CUDA_HOME",
    )


def _check_devices(devices: tuple[machine.Accelerator, ...], *, used: bool) -> Iterator[DoctorCheck]:
    for device in devices:
        size = format_bytes(device.memory) if device.memory else "memory unknown"
        yield DoctorCheck("accelerators", f"device {device.index}", f"{device.name}, {size}")
    if not devices:
        yield DoctorCheck(
            "accelerators",
            "devices",
            "none",
            "note",
            "training runs on the processor: right for small models and for tests",
        )
    elif not used:
        yield DoctorCheck(
            "accelerators", "DS_ACCELERATOR", "cpu", "note", "the devices above are not used", "unset DS_ACCELERATOR"
        )
    elif machine.package_version("torch") is not None:
        yield _check_torch(probe_torch(scripts_folder()))


def _check_torch(torch: TorchDevices) -> DoctorCheck:
    found = find_torch_problem(torch)
    if found is not None:
        means = f"{found.consequence}; `DS_ACCELERATOR=cpu` says that the CPU is meant"
        return DoctorCheck("accelerators", "torch's devices", found.reason, "missing", means, found.fix)
    capabilities = ", ".join(sorted({f"{major}.{minor}" for major, minor in torch.capabilities}))
    driver = f", driver {torch.driver}" if torch.driver else ""
    value = f"{torch.count}, compute capability {capabilities}; {torch.build}{driver}"
    return DoctorCheck("accelerators", "torch's devices", value)


def _check_processor(*, cpu_only: bool) -> Iterator[DoctorCheck]:
    flags = machine.cpu_flags()
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "sve") if name in flags]
    cores = machine.usable_cores()
    yield DoctorCheck(
        "processor", "model", f"{machine.cpu_model()}, {cores} core{'s' if cores > 1 else ''} for this process"
    )
    vector = {"avx2", "avx512f", "sve"} & flags or platform.machine() == "aarch64"
    yield DoctorCheck(
        "processor",
        "vector instructions",
        ", ".join(known) or "none",
        "ok" if vector else "note",
        "" if vector else "the optimizer on the CPU will be slow",
    )
    yield _check_numa()
    if cpu_only and machine.package_version("torch"):
        fp16 = _probe_cpu_fp16()
        value = "yes" if fp16 else "no" if fp16 is not None else "torch did not say"
        mend = "" if fp16 else "set `precision.bf16: true`"
        means = "" if fp16 else "DeepSpeed refuses `precision.fp16` here: it needs AVX512-FP16"
        yield DoctorCheck("processor", "fp16 on the CPU", value, "ok" if fp16 else "note", means, mend)


def _check_numa() -> DoctorCheck:
    """Only where there are several is it worth binding ranks to cores."""
    nodes, numactl = machine.count_numa_nodes(), shutil.which("numactl")
    if nodes == 1:
        return DoctorCheck("processor", "NUMA nodes", "1")
    means = "with the optimizer on the CPU, try `launch.bind_cores_to_rank: true`"
    mend = "" if numactl else "apt install numactl"
    return DoctorCheck("processor", "NUMA nodes", f"{nodes}, numactl {numactl or 'missing'}", "note", means, mend)


def _probe_cpu_fp16() -> bool | None:
    """What `is_fp16_supported` of DeepSpeed's `accelerator/cpu_accelerator.py` asks torch; None: no answer."""
    try:
        done = subprocess.run(  # noqa: S603
            python_command("-c", _FP16_PROBE), text=True, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"True": True, "False": False}.get(done.stdout.strip())


def _check_memory() -> Iterator[DoctorCheck]:
    memory = machine.host_memory()
    yield DoctorCheck("memory", "host", f"{format_bytes(memory.total)}, {format_bytes(memory.available)} available")
    free = machine.free_bytes(shm.FOLDER)
    few = free is None or free < 8 * _SHM_PER_RANK
    yield DoctorCheck(
        "memory",
        str(shm.FOLDER),
        f"{format_bytes(free)} free" if free is not None else "not there",
        "note" if few else "ok",
        f"each rank on the CPU takes {format_bytes(_SHM_PER_RANK)}, data loading more" if few else "",
        "give the container more, such as docker run --shm-size=8g" if few else "",
    )
    locked = machine.memlock_limit()
    enough = locked is None or locked >= memory.total // 2
    yield DoctorCheck(
        "memory",
        "lockable",
        "no limit" if locked is None else format_bytes(locked),
        "ok" if enough else "note",
        "" if enough else "pinned buffers for NVMe may be refused; CUDA pins without it",
        "" if enough else "ulimit -l unlimited (or /etc/security/limits.conf)",
    )
    disk = machine.free_bytes(Path.cwd())
    yield DoctorCheck(
        "memory",
        "disk here",
        f"{format_bytes(disk)} free on {machine.filesystem_type(Path.cwd())}" if disk is not None else "unknown",
    )


def _check_host_programs() -> Iterator[DoctorCheck]:
    for program, mend in (("pdsh", "apt install pdsh"), ("ssh", "apt install openssh-client")):
        found = shutil.which(program)
        means = "" if found else "one machine only: DeepSpeed starts other hosts with pdsh over ssh"
        yield DoctorCheck(
            "other hosts", program, found or "none", "ok" if found else "note", means, "" if found else mend
        )


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
