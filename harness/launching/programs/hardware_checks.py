# SPDX-License-Identifier: Apache-2.0
"""The hardware of this machine: accelerators, processor and memory, as rows of `harness doctor`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.hostinfo import machine
from harness.hostinfo.deepspeed_accelerator import find_accelerator_problem, find_other_devices, torch_may_take_others
from harness.hostinfo.gpu_health import group_gpu_problems
from harness.hostinfo.gpu_links import find_numa_nodes_of_gpus
from harness.hostinfo.nvml_probe import probe_gpus
from harness.hostinfo.torch_devices import TorchDevices, find_torch_problem
from harness.hostinfo.torch_probe import probe_torch
from harness.interpreter import python_command
from harness.launching.hosts.local_host import workers_folder
from harness.launching.process import shm
from harness.launching.programs.doctor_rows import DoctorCheck
from harness.units import format_bytes

_SHM_PER_RANK = 66 * 2**20
_FP16_PROBE = "import torch; print(torch.ops.mkldnn._is_mkldnn_fp16_supported())"


def ask_torch(*, used: bool) -> TorchDevices | None:
    """torch's answer about the devices, where ranks would use NVIDIA's (`used`) or torch may take others."""
    if machine.package_version("torch") is None or not (used or torch_may_take_others(os.environ)):
        return None
    return probe_torch(workers_folder())


def check_devices(
    devices: tuple[machine.Accelerator, ...], torch: TorchDevices | None, *, used: bool
) -> Iterator[DoctorCheck]:
    """The accelerators, and whether torch can use them; `used`: ranks would use NVIDIA's."""
    problem = find_accelerator_problem(os.environ, torch, has_nvidia=bool(devices))
    for device in devices:
        size = format_bytes(device.memory) if device.memory else "memory unknown"
        yield DoctorCheck("accelerators", f"device {device.index}", f"{device.name}, {size}")
    others = " and ".join(find_other_devices())
    if not devices:
        means = "training runs on the CPU: good for small models and tests"
        yield DoctorCheck("accelerators", "devices", f"no NVIDIA GPU, {others}" if others else "none", "note", means)
    if problem is not None:
        means = "`harness launch` refuses to start"
        yield DoctorCheck("accelerators", "DeepSpeed's choice", problem.reason, "missing", means, problem.fix)
    elif not devices:
        return
    elif not used:
        yield DoctorCheck(
            "accelerators", "DS_ACCELERATOR", "cpu", "note", "the devices above are not used", "unset DS_ACCELERATOR"
        )
    elif torch is not None:
        yield _check_torch(torch)


def _check_torch(torch: TorchDevices) -> DoctorCheck:
    problem = find_torch_problem(torch)
    if problem is not None:
        means = f"{problem.consequence}; set `DS_ACCELERATOR=cpu` to train on the CPU on purpose"
        return DoctorCheck("accelerators", "torch's devices", problem.reason, "missing", means, problem.fix)
    capabilities = ", ".join(sorted({f"{major}.{minor}" for major, minor in torch.capabilities}))
    driver = f", driver {torch.driver}" if torch.driver else ""
    value = f"{torch.count}, compute capability {capabilities}; {torch.build}{driver}"
    if torch.slices:
        means = f"the GPUs are in MIG mode: one rank can start, on {torch.slices[0]}"
        fix = "nvidia-smi -mig 0, as root, for whole GPUs"
        return DoctorCheck("accelerators", "torch's devices", value, "note", means, fix)
    return DoctorCheck("accelerators", "torch's devices", value)


def check_gpu_health() -> Iterator[DoctorCheck]:
    """The health of all GPUs by NVML, one row for each kind of problem."""
    answer = probe_gpus()
    if not answer.gpus:
        fix = "pip install nvidia-ml-py" if "cannot be imported" in answer.words else ""
        means = "a broken, throttled or badly connected GPU is not noticed before a run"
        yield DoctorCheck("accelerators", "GPU health", f"not read: {answer.words or 'no GPU'}", "note", means, fix)
        return
    groups = group_gpu_problems({"": answer.gpus})
    for group in groups:
        means = "`harness launch` starts no rank on it" if group.is_fault else "a run would be slower"
        yield DoctorCheck(
            "accelerators", "GPU health", group.message, "note", "; ".join([means, *group.notes]), group.fix
        )
    if not groups:
        yield DoctorCheck("accelerators", "GPU health", f"{len(answer.gpus)} read by NVML, no problem")


def check_processor(*, cpu_only: bool) -> Iterator[DoctorCheck]:
    """Cores, vector instructions and NUMA nodes; fp16 where ranks train on the CPU."""
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
    yield _check_numa({} if cpu_only else find_numa_nodes_of_gpus())
    if cpu_only and machine.package_version("torch"):
        fp16 = _probe_cpu_fp16()
        value = "yes" if fp16 else "no" if fp16 is not None else "torch gave no answer"
        fix = "" if fp16 else "set `precision.bf16: true`"
        means = "" if fp16 else "DeepSpeed refuses `precision.fp16` here: it needs AVX512-FP16"
        yield DoctorCheck("processor", "fp16 on the CPU", value, "ok" if fp16 else "note", means, fix)


def _check_numa(gpu_nodes: Mapping[int, int]) -> DoctorCheck:
    """NUMA nodes; binding ranks to cores helps only where there are several. DeepSpeed deals out cores by the number of
    the rank (`utils/numa.py`), so that it helps where GPUs are numbered as their nodes are.
    """
    nodes, numactl = machine.count_numa_nodes(), shutil.which("numactl")
    if nodes == 1:
        return DoctorCheck("processor", "NUMA nodes", "1")
    crossed = [gpu for gpu, node in gpu_nodes.items() if node != gpu * nodes // len(gpu_nodes)]
    if crossed:
        means = (
            f"`launch.bind_cores_to_rank` would give rank {crossed[0]} cores of another node than that of its GPU, "
            f"{gpu_nodes[crossed[0]]}: compare with and without"
        )
        return DoctorCheck("processor", "NUMA nodes", f"{nodes}, numactl {numactl or 'missing'}", "note", means)
    means = "with the optimizer on the CPU, try `launch.bind_cores_to_rank: true`"
    fix = "" if numactl else "apt install numactl"
    return DoctorCheck("processor", "NUMA nodes", f"{nodes}, numactl {numactl or 'missing'}", "note", means, fix)


def _probe_cpu_fp16() -> bool | None:
    """torch's fp16 support on this CPU, as DeepSpeed asks (`accelerator/cpu_accelerator.py`); None: no answer."""
    try:
        process = subprocess.run(  # noqa: S603
            python_command("-c", _FP16_PROBE), text=True, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"True": True, "False": False}.get(process.stdout.strip())


def check_memory() -> Iterator[DoctorCheck]:
    """Host memory, shared memory, the limit of locked memory, and the disk of the current folder."""
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
