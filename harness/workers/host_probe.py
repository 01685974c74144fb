# SPDX-License-Identifier: Apache-2.0
"""Prints the facts of one host as one line of JSON on stdout. `harness preflight` sends it to every host through ssh.

Standard library only, and it runs from stdin (`python - REQUEST`), so that a host needs nothing but Python: the harness
may be missing there, which is one of the facts. It changes nothing; it listens on ports where the request says so.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an old Python on a host could not evaluate them
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]
    Answer = dict[str, Any]

MARK = "HARNESS-PROBE "
"""Begins our one line; a login shell may print others before it."""
SIOCGIFADDR, SIOCGIFNETMASK, SIOCGIFFLAGS = 0x8915, 0x891B, 0x8913  # linux/sockios.h
IFF_UP, IFF_LOOPBACK = 0x1, 0x8  # linux/if.h
AIO_PROGRAM = "#include <libaio.h>\nint main(void) { return io_submit(0, 0, 0); }\n"


def read_facts(request: Request) -> Answer:
    """All facts of this host that a gate may use. Bytes and seconds; null where they are not known."""
    sys.path[:0] = request.get("path", [])
    start = time.time()
    facts: Answer = {
        "time": start,
        "hostname": socket.gethostname(),
        "machine": read_identity(),
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in request.get("packages", [])},
        "code": {folder: hash_code(folder) for folder in request.get("code", [])},
        "accelerators": list_accelerators(),
        "cores": len(os.sched_getaffinity(0)),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        "memory": read_memory(),
        "memlock": read_limit(resource.RLIMIT_MEMLOCK),
        "nofile": read_limit(resource.RLIMIT_NOFILE),
        "shm": free_bytes(Path("/dev/shm")),  # noqa: S108  (where the kernel's shared memory is)
        "folders": {name: describe_folder(Path(path)) for name, path in request.get("folders", {}).items()},
        "marks": {path: Path(path).exists() for path in request.get("marks", [])},
        "compiler": shutil.which(os.environ.get("CXX") or "c++"),
        "interfaces": list_interfaces(),
        "own_addresses": resolve_addresses(socket.gethostname()),
        "ports": {str(port): check_port(port) for port in request.get("ports", [])},
    }
    if request.get("numactl"):
        facts["numactl"] = shutil.which("numactl") is not None
    if request.get("libaio"):
        facts["libaio"] = can_link_libaio()
    if request.get("nvcc") is not None and facts["accelerators"]:
        facts["nvcc"] = has_nvcc({**os.environ, **request["nvcc"]})
    asked = facts["accelerators"] and request.get("nvml")
    nvml = start_probe(request["nvml"], dict(os.environ)) if asked else None  # while torch takes its seconds
    if request.get("torch") and facts["accelerators"]:
        facts["torch"] = probe_torch(request["torch"], time.time() - start)
    if nvml is not None:
        facts["nvml"] = read_probe(nvml, request["nvml"], start)
    facts["took"] = time.time() - start
    return facts


def read_identity() -> str:
    """Tells machines apart whatever they are called: the boot id, and the network that this process sees."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    try:
        return boot + "/" + os.readlink("/proc/self/ns/net")  # noqa: PTH115
    except OSError:
        return boot


def package_version(name: str) -> str | None:
    """Version of an installed distribution, not imported."""
    try:
        return importlib.metadata.version(name)
    except Exception:  # a broken installation is none
        return None


def hash_code(folder_name: str) -> str | None:
    """One sha256 over names and contents of the Python files below a folder; None if there are none."""
    root, digest, count = Path(folder_name), hashlib.sha256(), 0
    for file in sorted(root.rglob("*.py")):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        digest.update(str(file.relative_to(root)).encode() + b"\0" + hashlib.sha256(content).digest())
        count += 1
    return digest.hexdigest() if count else None


def list_accelerators() -> list[dict[str, str | int | None]]:
    """NVIDIA devices as nvidia-smi lists them: name and bytes of memory."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.rpartition(",") for line in done.stdout.decode("utf-8", "replace").splitlines() if "," in line]
    return [{"name": n.strip(), "memory": int(m) * 2**20 if m.strip().isdigit() else None} for n, _, m in rows]


def has_nvcc(env: dict[str, str]) -> bool:
    """Whether CUDA's compiler is where DeepSpeed looks (`torch/utils/cpp_extension.py`, `_find_cuda_home`)."""
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    folders = [f"{home}/bin"] if home else [env.get("PATH", os.defpath), "/usr/local/cuda/bin"]
    return any(shutil.which("nvcc", path=folder) for folder in folders)


def probe_torch(torch_request: Request, spent: float) -> Answer:
    """Ask torch about these devices: `source`, the text of `torch_device_probe.py`, is run by this Python, within
    `seconds` less those `spent`, with the variables and the PYTHONPATH that ranks have. `answer` is null where none
    came in time.
    """
    env = {
        **os.environ,
        **torch_request["environ"],
        **({"PYTHONPATH": torch_request["path"]} if torch_request["path"] else {}),
    }
    start = time.time() - spent
    child = start_probe(torch_request, env)
    result = {"seconds": torch_request["seconds"], "driver": read_driver_version()}
    return {**result, "visible": env.get("CUDA_VISIBLE_DEVICES"), "answer": read_probe(child, torch_request, start)}


def start_probe(request: Request, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Run the program `source` by this Python."""
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", "-c", request["source"]],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def read_probe(child: subprocess.Popen[bytes], request: Request, start: float) -> Answer | None:
    """The line of its output that begins with `mark`, as JSON; None where it has not ended `seconds` after `start`."""
    try:
        left = max(1.0, start + request["seconds"] - time.time())
        out = child.communicate(timeout=left)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        child.kill()  # without a wait: a process that the driver holds in the kernel does not end
        return None
    lines = [line[len(request["mark"]) :] for line in out.splitlines() if line.startswith(request["mark"])]
    return json.loads(lines[-1]) if lines else {"words": f"its process ended with code {child.returncode}"}


def read_driver_version() -> str | None:
    """The version of NVIDIA's driver, from the kernel's module; else from nvidia-smi, which may take seconds."""
    version = r"\b\d{3,}\.\d+(\.\d+)?\b"
    match = re.search(version, read_text("/proc/driver/nvidia/version"))
    if match is None:
        query = [shutil.which("nvidia-smi") or "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=5, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.match(version, done.stdout.decode("utf-8", "replace"))
    return match.group(0) if match else None


def read_memory() -> dict[str, int]:
    """Total and available bytes, capped by the control group's limit (cgroup v2)."""
    rows = dict(line.split(":", 1) for line in read_text("/proc/meminfo").splitlines() if ":" in line)
    total, available = (int(rows.get(n, "0 kB").split()[0]) * 1024 for n in ("MemTotal", "MemAvailable"))
    most = read_text("/sys/fs/cgroup/memory.max").strip()
    if most.isdigit():
        used = read_text("/sys/fs/cgroup/memory.current").strip()
        total, available = min(total, int(most)), min(available, max(0, int(most) - int(used or 0)))
    return {"total": total, "available": available}


def read_limit(kind: int) -> int | None:
    """A soft limit; None is no limit."""
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def free_bytes(path: Path) -> int | None:
    """Free bytes for this user below a folder that exists."""
    try:
        return shutil.disk_usage(str(path)).free
    except OSError:
        return None


def describe_folder(path: Path) -> Answer:
    """The nearest folder that exists at or above a path, whether it can be written, and its file system."""
    parent = next((p for p in (path, *path.parents) if p.is_dir()), Path("/"))
    return {
        "path": str(path),
        "exists": path.is_dir(),
        "writable": os.access(str(parent), os.W_OK | os.X_OK),
        "free": free_bytes(parent),
        "filesystem": read_filesystem(parent),
    }


def read_filesystem(path: Path) -> str:
    """The type of the file system that holds a path."""
    best, kind, target = "", "", str(path.resolve())
    for line in read_text("/proc/mounts").splitlines():
        _, mount, fstype = line.split(" ")[:3]
        if (target == mount or target.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, fstype
    return kind


def list_interfaces() -> list[Answer]:
    """Every interface that is up, with its first IPv4 address and the length of its prefix."""
    rows = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            ifreq = struct.pack("256s", name.encode()[:15])
            try:
                flags = struct.unpack("H", fcntl.ioctl(probe, SIOCGIFFLAGS, ifreq)[16:18])[0]
                address = socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, ifreq)[20:24])
                mask = struct.unpack("!I", fcntl.ioctl(probe, SIOCGIFNETMASK, ifreq)[20:24])[0]
            except OSError:  # it has no address
                continue
            if flags & IFF_UP:
                prefix = bin(mask).count("1")
                rows.append(
                    {"name": name, "address": address, "prefix": prefix, "loopback": bool(flags & IFF_LOOPBACK)}
                )
    return rows


def resolve_addresses(name: str) -> list[str]:
    """The addresses of a name, as gloo looks up its own host's."""
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def check_port(port: int) -> str:
    """`free`, or why a rendezvous cannot listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return "taken" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
    return "free"


def can_link_libaio() -> bool:
    """Whether a C program that calls io_submit compiles and links, which DeepSpeed's async_io op needs."""
    cc = shutil.which(os.environ.get("CC") or "cc")
    if cc is None:
        return False
    flags = (os.environ.get("CFLAGS", "") + " " + os.environ.get("LDFLAGS", "")).split()
    command = [cc, *flags, "-x", "c", "-", "-o", os.devnull, "-laio"]
    try:
        done = subprocess.run(  # noqa: S603
            command,
            input=AIO_PROGRAM.encode(),
            timeout=30,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def listen(request: Request) -> Answer:
    """Accept connections on the ports of the request (0: any) for `seconds`; prints the ports first."""
    sockets = []
    for port in request["ports"]:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(1024)
        listener.settimeout(0.1)
        sockets.append(listener)
    write_answer({"listening": [listener.getsockname()[1] for listener in sockets]})
    end = time.monotonic() + request["seconds"]
    while time.monotonic() < end and os.getppid() != 1:
        for listener in sockets:
            try:
                listener.accept()[0].close()
            except OSError:
                continue
    return {"listened": True}


def connect(request: Request) -> Answer:
    """For each address and port: `ok`, or why no connection was made. And the address that this host used."""
    links = []
    for address, port in request["targets"]:
        with socket.socket() as connection:
            connection.settimeout(request["seconds"])
            try:
                connection.connect((address, port))
                links.append({"address": address, "port": port, "state": "ok", "from": connection.getsockname()[0]})
            except OSError as error:
                why = "no answer" if isinstance(error, socket.timeout) else (error.strerror or str(error)).lower()
                links.append({"address": address, "port": port, "state": why, "from": None})
    return {"links": links}


def read_text(path: str) -> str:
    """A file's content, or nothing."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def write_answer(answer: Answer) -> None:
    """Print one line that the other side recognises."""
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    request = json.loads(base64.urlsafe_b64decode(sys.argv[1]))
    jobs: dict[str, Callable[[Request], Answer]] = {"facts": read_facts, "listen": listen, "connect": connect}
    write_answer(jobs[request["job"]](request))
