# SPDX-License-Identifier: Apache-2.0
"""Caches py-cpuinfo's description of this CPU in the folder of the compiled ops.

Upstream: `cpuinfo.get_cpu_info` starts a Python process. DeepSpeed's op builders call it two to four times on each rank
while they load ops.

Patch: `import cpuinfo` gets a module that reads the description from `cpu-info.json`, under a key of the CPU and of the
release of Python; other attributes come from the real module. Nothing of torch or DeepSpeed is imported here.

Gain: 1.2 s of CPU time a call (`benchmarks/LOG.md`, start-up); `tests/training/patches/test_each_patch.py` counts the
processes.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.file_io import replace_file
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.patches.patch_registry import Patch, Target

CACHE_FILE = "cpu-info.json"
_CPU_FIELDS = ("vendor_id", "model name", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
"""Lines of /proc/cpuinfo that identify the CPU: hosts that share a home folder may have different ones."""


class _CpuinfoCache(ModuleType):
    """Replaces the module `cpuinfo`; other attributes come from the real one."""

    def get_cpu_info(self) -> dict[str, Any]:
        """py-cpuinfo's description, from the cache."""
        file, key = torch_extensions_dir() / CACHE_FILE, _cpu_key()
        cache = _read_cache(file)
        if key not in cache:
            cache[key] = _import_real_cpuinfo().get_cpu_info()
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(file, json.dumps(cache, indent=1) + "\n", durable=False)
            except OSError:  # computed again next time
                pass
        self.get_cpu_info = lambda: dict(cache[key])  # type: ignore[method-assign]
        return dict(cache[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_import_real_cpuinfo(), name)


def install_cpuinfo_cache() -> None:
    """From now on `import cpuinfo` in this process gets the cached description."""
    if "cpuinfo" not in sys.modules and importlib.util.find_spec("cpuinfo") is not None:
        sys.modules["cpuinfo"] = _CpuinfoCache("cpuinfo")


def _import_real_cpuinfo() -> ModuleType:
    stand_in = sys.modules.pop("cpuinfo")
    try:
        return importlib.import_module("cpuinfo")
    finally:
        sys.modules["cpuinfo"] = stand_in


def _cpu_key() -> str:
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    except OSError:
        first = ""
    lines = sorted(line for line in first.splitlines() if line.partition(":")[0].strip() in _CPU_FIELDS)
    return hashlib.sha256("\n".join([platform.machine(), platform.python_version(), *lines]).encode()).hexdigest()[:16]


def _read_cache(file: Path) -> dict[str, dict[str, Any]]:
    try:
        cache = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(cache, dict):
        return {}
    return {key: info for key, info in cache.items() if isinstance(info, dict) and "arch" in info}


PATCH = Patch(
    name="cpuinfo-cache",
    kind="start-up",
    targets=(Target("cpuinfo.cpuinfo:get_cpu_info", "969b580e626c125b"),),
    remove_when="`get_cpu_info` remembers its answer, or the op builders ask once for all ops",
    when="all runs",
    package="py-cpuinfo",
    tested=("9.0.0",),
    acts_at_import=True,
)
