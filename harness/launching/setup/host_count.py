# SPDX-License-Identifier: Apache-2.0
"""Checks that a launch on very many hosts can be started at all: the arguments of DeepSpeed's launcher, open files.

Reads two limits of this machine; starts nothing.
"""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator, Sequence

from harness.findings import Finding, Fix
from harness.spec.hostfile import Host

_FILES_PER_HOST = 3
"""Two pipes of a node agent's ssh, and what starting it takes."""
_OTHER_FILES = 512
MAX_ARGUMENT_BYTES = 131071
"""Linux takes no longer argument of a program (MAX_ARG_STRLEN, execve(2))."""
_REMOTE_COMMAND_BYTES = 8192
"""What pdsh puts into one argument of ssh with the list of hosts: variables, paths and options."""


def check_host_count(hosts: Sequence[Host], launcher: str | None) -> Iterator[Finding]:
    """EN025 where there are too many hosts. `launcher` is the spec's; None where each host starts its own ranks."""
    if launcher == "openmpi":
        size = 0  # mpirun reads a file
    elif launcher == "slurm":
        size = sum(len(host.name) + 1 for host in hosts)
    else:
        size = _world_info_bytes(hosts) + (_REMOTE_COMMAND_BYTES if launcher is not None else 0)
    if size > MAX_ARGUMENT_BYTES:
        others = "" if launcher == "slurm" else "`launch.launcher: slurm` or `openmpi`, which need no such list, or "
        yield Finding(
            "EN025",
            "error",
            f"{len(hosts):,} hosts are too many for DeepSpeed's launcher: it writes them into one argument of {size:,} "
            f"bytes, and Linux takes {MAX_ARGUMENT_BYTES:,}",
            key="launch.launcher",
            notes=("the launcher ends with `OSError: [Errno 7] Argument list too long`",),
            fix=Fix(f"use {others}shorter names of hosts"),
        )
    limit, required = max_open_files(), required_open_files(len(hosts))
    if launcher is not None and limit is not None and limit < required:
        yield Finding(
            "EN025",
            "error",
            f"a launch on {len(hosts):,} hosts has up to {required:,} open files, and this machine allows {limit:,}",
            fix=Fix("raise the hard limit (`ulimit -Hn`), in /etc/security/limits.conf"),
        )


def _world_info_bytes(hosts: Sequence[Host]) -> int:
    """The length of `--world_info`, as DeepSpeed encodes it (`launcher/runner.py`, `encode_world_info`)."""
    sizes = [len(json.dumps(host.name)) + len(": , ") + _device_list_bytes(host) for host in hosts]
    return len("--world_info=") + 4 * -(-sum(sizes, start=len("{}") - len(", ")) // 3)  # in base64


def _device_list_bytes(host: Host) -> int:
    """The length of the numbers of the devices as JSON, which may be too many to be made."""
    if host.devices is not None:
        return len(json.dumps(list(host.devices)))
    digits = host.slots + sum(max(0, host.slots - 10**size) for size in range(1, len(str(host.slots))))
    return len("[]") + int(digits) + len(", ") * (host.slots - 1)


def required_open_files(num_hosts: int) -> int:
    """The files that a launch on so many other hosts has open at once."""
    return _FILES_PER_HOST * num_hosts + _OTHER_FILES


def max_open_files() -> int | None:
    """The number to which this process may raise its limit; None is no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def raise_open_file_limit(num_hosts: int) -> None:
    """Raise the soft limit to what so many hosts need, as far as the hard limit lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = required_open_files(num_hosts)
    if soft == resource.RLIM_INFINITY or soft >= required:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (required if hard == resource.RLIM_INFINITY else min(required, hard), hard)
        )
