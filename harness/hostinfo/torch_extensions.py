# SPDX-License-Identifier: Apache-2.0
"""The folder in which torch compiles DeepSpeed's ops: one for each environment and kind of machine.

torch gives all environments of a user one folder by version of Python and CUDA (`torch/utils/cpp_extension.py`,
`_get_build_directory`). Each environment compiles over the ops of the others, under the runs that use them. A rank that
waits for another environment's compiler then loads the result: DeepSpeed 0.19.8 with the ops of 0.18.2 ended with
`module 'deepspeed_shm_comm' has no attribute 'vector_kernel_level'`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from harness.hostinfo import machine

VARIABLE = "TORCH_EXTENSIONS_DIR"


def torch_extensions_dir(environ: Mapping[str, str] | None = None) -> Path:
    """TORCH_EXTENSIONS_DIR where the user has set it, else this environment's own folder in torch's cache.

    Every process computes it on its own host: home, torch and processor may differ there.
    """
    env = os.environ if environ is None else environ
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    cache = Path(env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path.home() raises without a home
    return cache / "torch_extensions" / _environment_name(env)


def set_torch_extensions_dir(environ: MutableMapping[str, str]) -> None:
    """Make torch compile and load ops there; for a process before its import of DeepSpeed."""
    environ[VARIABLE] = str(torch_extensions_dir(environ))


def _environment_name(environ: Mapping[str, str]) -> str:
    """The versions for people, and a hash of everything that compiled ops depend on and that differs between hosts or
    environments.

    Processor: DeepSpeed compiles with -march=native. Paths: ninja compiles again when a command line has changed.
    """
    deepspeed, torch = machine.package_version("deepspeed"), machine.package_version("torch")
    python = platform.python_version()
    parts = [
        *(str(part) for part in (deepspeed, _package_location("deepspeed"), torch, _package_location("torch"))),
        platform.python_implementation(),
        python,
        platform.machine(),
        machine.cpu_model(),
        " ".join(sorted(machine.cpu_flags())),
        _device_name(environ),
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
    return re.sub(r"[^\w.-]", "-", f"deepspeed-{deepspeed}-torch-{torch}-python-{python}-{digest}")


def _package_location(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    return spec.origin if spec else None


def _device_name(environ: Mapping[str, str]) -> str:
    """The device of the ranks: DeepSpeed compiles CUDA code for the devices of its host."""
    accelerator = environ.get("DS_ACCELERATOR", "")
    return "cpu" if accelerator == "cpu" else ",".join(machine.accelerator_models()) or accelerator or "cpu"
