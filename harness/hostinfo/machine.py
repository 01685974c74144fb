# SPDX-License-Identifier: Apache-2.0
"""Facts of this machine, from the kernel and from the programs on PATH.

Standard library only: torch and DeepSpeed are looked up by their metadata and never imported here.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from harness.hostinfo.installed_packages import find_version

_CAP_IPC_LOCK = 14
"""Its bit in `CapEff` (linux/capability.h)."""
_NETWORK_FILESYSTEMS = frozenset("nfs nfs4 cifs smb3 lustre gpfs beegfs ceph glusterfs fuse.sshfs 9p wekafs".split())
_LOOKUP_THREADS = 64
"""Simultaneous look-ups of names."""
NAME_LOOKUP_SECONDS = 12.0
"""Limit for all names of a hostfile together. Longer than a resolver waits for one server before it asks the next."""
_DRIVER_VERSION = re.compile(r"\b\d{3,}\.\d+(\.\d+)?\b")
_NVCC_RELEASE = re.compile(r"\brelease (\d+\.\d+)")
_LIBAIO_PROBE = "#include <libaio.h>\nint main(void) { return io_submit(0, 0, 0); }\n"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device for a rank; `memory` in bytes, None where unknown."""

    index: int
    name: str
    memory: int | None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory in bytes, as far as this process may use it."""

    total: int
    available: int


def package_version(distribution: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    return find_version(distribution)


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, and the quota of its control group (cgroup v2 `cpu.max`)."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read_text("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.strip().isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores


def count_numa_nodes() -> int:
    """NUMA nodes; 1 where the kernel does not say."""
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def host_memory() -> HostMemory:
    """Host memory from /proc/meminfo, capped by the limit of the control group (cgroup v2 `memory.max`)."""
    rows = dict(line.split(":", 1) for line in _read_text("/proc/meminfo").splitlines() if ":" in line)

    def bytes_of(row: str) -> int:
        return int(rows.get(row, "0 kB").split()[0]) * 1024

    total, available = bytes_of("MemTotal"), bytes_of("MemAvailable")
    limit = _read_text("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        used = _read_text("/sys/fs/cgroup/memory.current").strip()
        total = min(total, int(limit))
        available = min(available, max(0, int(limit) - int(used or 0)))
    return HostMemory(total, available)


def cpu_model() -> str:
    """The processor's model name."""
    return _read_cpuinfo_field("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Instruction set extensions in the kernel's names (`avx2`, `avx512f`, `avx512_fp16`, `amx_tile`, ...)."""
    return frozenset((_read_cpuinfo_field("flags") or _read_cpuinfo_field("Features")).split())


def accelerators() -> tuple[Accelerator, ...]:
    """NVIDIA devices, from nvidia-smi, else counted in /dev. Empty on a machine that trains on its CPU."""
    text = run_for_output(["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"])
    devices = []
    for line in text.splitlines():
        index, _, rest = line.partition(",")
        name, _, mebibytes = rest.rpartition(",")
        if index.strip().isdigit():
            size = int(mebibytes) * 2**20 if mebibytes.strip().isdigit() else None
            devices.append(Accelerator(int(index), name.strip(), size))
    if devices:
        return tuple(devices)
    nodes = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
    return tuple(Accelerator(index, "NVIDIA device", None) for index in nodes)


def accelerator_models() -> tuple[str, ...]:
    """The kinds of NVIDIA device here, sorted, from the driver's files: nvidia-smi takes up to seconds."""
    files = Path("/proc/driver/nvidia/gpus").glob("*/information")
    models = {
        line.partition(":")[2].strip()
        for file in files
        for line in _read_text(str(file)).splitlines()
        if line.startswith("Model:")
    }
    if not models and any(Path("/dev").glob("nvidia[0-9]*")):
        models = {device.name for device in accelerators()}
    return tuple(sorted(models))


def is_cpu_forced(environ: Mapping[str, str]) -> bool:
    """Do these variables make DeepSpeed take the CPU, whatever accelerators there are?"""
    return environ.get("DS_ACCELERATOR") == "cpu"


def accelerators_for(environ: Mapping[str, str]) -> tuple[Accelerator, ...]:
    """The devices of ranks with these variables."""
    return () if is_cpu_forced(environ) else accelerators()


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver, from nvidia-smi, else from the kernel's module."""
    output = run_for_output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    match = _DRIVER_VERSION.match(output) or _DRIVER_VERSION.search(_read_text("/proc/driver/nvidia/version"))
    return match[0] if match else None


def cxx_compiler() -> str | None:
    """The C++ compiler that torch's extension builder would call: `CXX`, else c++."""
    return shutil.which(os.environ.get("CXX") or "c++")


def find_nvcc(environ: Mapping[str, str]) -> str | None:
    """The nvcc that DeepSpeed's builders run: below `CUDA_HOME` or `CUDA_PATH`, else the one on PATH, else below
    /usr/local/cuda (`torch/utils/cpp_extension.py`, `_find_cuda_home`).
    """
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc", path=f"{home}/bin" if home else environ.get("PATH", os.defpath))
    return nvcc or (None if home else shutil.which("nvcc", path="/usr/local/cuda/bin"))


def lacks_nvcc(environ: Mapping[str, str]) -> bool:
    """Would DeepSpeed compile an op for NVIDIA devices, and find no compiler?"""
    return bool(accelerators_for(environ)) and find_nvcc(environ) is None


def nvcc_release(nvcc: str) -> str | None:
    """The CUDA release of a compiler, such as `12.8`; None where it does not say."""
    match = _NVCC_RELEASE.search(run_for_output([nvcc, "--version"]))
    return match[1] if match else None


def can_link_libaio() -> bool:
    """Does a C program that calls io_submit compile and link? DeepSpeed's async_io op asks the same."""
    cc = shutil.which(os.environ.get("CC") or "cc")
    if cc is None:
        return False
    flags = (os.environ.get("CFLAGS", "") + " " + os.environ.get("LDFLAGS", "")).split()
    command = [cc, *flags, "-x", "c", "-", "-o", os.devnull, "-laio"]
    try:
        process = subprocess.run(command, input=_LIBAIO_PROBE, text=True, capture_output=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


def free_bytes(path: Path) -> int | None:
    """Free bytes for this user on the file system of `path` or of its nearest parent that exists."""
    for folder in (path, *path.parents):
        if folder.exists():
            try:
                return shutil.disk_usage(folder).free
            except OSError:
                return None
    return None


def memlock_limit() -> int | None:
    """Bytes of memory that this process may lock in place; None is no limit, as for whoever has CAP_IPC_LOCK outside a
    user namespace (mlock(2)).
    """
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    status = dict(line.split(":", 1) for line in _read_text("/proc/self/status").splitlines() if ":" in line)
    may_exceed = int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1
    is_in_namespace = _read_text("/proc/self/uid_map").split() != ["0", "0", str(2**32 - 1)]
    return None if may_exceed and not is_in_namespace else soft


def filesystem_type(path: Path) -> str:
    """The type of the file system that holds `path`, from /proc/mounts."""
    longest_mount, kind = "", ""
    target = str(path.resolve())
    for line in _read_text("/proc/mounts").splitlines():
        _, mount, fstype, *_ = line.split(" ")
        is_inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if is_inside and len(mount) >= len(longest_mount):
            longest_mount, kind = mount, fstype
    return kind


def is_on_network_filesystem(path: Path) -> bool:
    """May other machines see and hold the same files?"""
    return filesystem_type(path) in _NETWORK_FILESYSTEMS


def find_local_names(hosts: Iterable[str], seconds: float | None = None) -> tuple[set[str], list[str]]:
    """(the names of a hostfile that mean this machine, the names that could not be looked up in time).

    `seconds` is the limit for all of them together, by default NAME_LOOKUP_SECONDS. A name means this machine when it
    is its name, or has an address that can be bound here.
    """
    names = list(dict.fromkeys(hosts))
    hostname = socket.gethostname().lower()
    own_names = {"localhost", "127.0.0.1", "::1", hostname, hostname.partition(".")[0]}
    local = {name for name in names if _normalize_host(name) in own_names}
    unknown = [name for name in names if name not in local]
    answers = _resolve_names(unknown, NAME_LOOKUP_SECONDS if seconds is None else seconds)
    return local | {name for name, is_local in answers.items() if is_local}, [
        name for name in unknown if name not in answers
    ]


def _resolve_names(names: list[str], seconds: float) -> dict[str, bool]:
    """Does a name have an address of this machine, for the names with an answer in time? A look-up cannot be cancelled:
    threads that still wait for one at the deadline stay behind, and end with the process.
    """
    deadline = time.monotonic() + seconds
    waiting, answered = SimpleQueue[str](), SimpleQueue[tuple[str, bool]]()
    for name in names:
        waiting.put(name)

    def resolve_waiting() -> None:
        while time.monotonic() < deadline:
            try:
                name = waiting.get_nowait()
            except Empty:
                return
            answered.put((name, _is_local_name(name)))

    for _ in range(min(_LOOKUP_THREADS, len(names))):
        threading.Thread(target=resolve_waiting, name="host-name", daemon=True).start()
    results: dict[str, bool] = {}
    while len(results) < len(names):
        try:
            name, is_local = answered.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        results[name] = is_local
    return results


def _normalize_host(host: str) -> str:
    return host.strip("[]").lower()


def _is_local_name(host: str) -> bool:
    """Does a name have an address that can be bound on this machine?"""
    try:
        addresses = socket.getaddrinfo(_normalize_host(host), 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):  # UnicodeError: a name that cannot be looked up, such as `a..b`
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def host_identity() -> str:
    """`name:boot id` of this machine: names alone are not unique among hosts, the kernel's boot id is."""
    return f"{socket.gethostname()}:{_read_text('/proc/sys/kernel/random/boot_id').strip()}"


def process_start_ticks(pid: int) -> int | None:
    """The start of a process in clock ticks since boot (field 22 of /proc/PID/stat): with the pid it is unique."""
    stat = _read_text(f"/proc/{pid}/stat")
    return int(stat.rpartition(")")[2].split()[19]) if stat else None


def run_for_output(command: list[str], timeout: float = 10.0) -> str:
    """Standard output of a program, or nothing when it is missing, fails or takes longer than `timeout` seconds."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        process = subprocess.run([program, *command[1:]], text=True, capture_output=True, timeout=timeout, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _read_cpuinfo_field(field: str) -> str:
    for line in _read_text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
