# SPDX-License-Identifier: Apache-2.0
"""The machine and the versions, for the first line of a part. Imports no torch; starts `nvidia-smi` and git alone."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import SEED

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "nvidia-nccl-cu13", "nvidia-nccl-cu12")
QUERY = "name,driver_version,memory.total,memory.used,clocks.max.sm,pcie.link.gen.max,pcie.link.width.max"


def read_facts(*, rehearse: bool, part: int) -> dict[str, Any]:
    """Facts that a reader of the figures needs. A program that is not there has `null`."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "part": part,
        "rehearsal": rehearse,
        "seed": SEED,
        "nvidia_smi": _output_of("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"),
        "nvcc": shutil.which("nvcc"),
        "versions": {name: _version_of(name) for name in PACKAGES if _version_of(name)},
        "python": platform.python_version(),
        "kernel": platform.release(),
        "git_revision": _output_of("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "git_is_clean": _output_of("git", "-C", str(ROOT), "status", "--porcelain", "-uno") == "",
        "cores": len(os.sched_getaffinity(0)),
        "host_memory_bytes": memory,
        "locked_memory_limit": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "shm_bytes": shutil.disk_usage("/dev/shm").total,  # noqa: S108
    }


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output_of(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
