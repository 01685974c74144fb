"""Where DeepSpeed's ops are compiled and loaded from: a folder for each environment and kind of machine.

torch gives all environments of a user one folder by version of Python and CUDA (`torch/utils/cpp_extension.py`,
`_get_build_directory`). Each of them compiles there again what another has compiled, under the jobs that run. A rank
that waits for another environment's compiler then loads what that has made: DeepSpeed 0.19.8 beside 0.18.2 ended with
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

    Every process works it out for itself, on its own host: home, torch and processor may be others there.
    """
    env = os.environ if environ is None else environ
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    cache = Path(env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path.home() raises without a home
    return cache / "torch_extensions" / _environment_name(env)


def set_torch_extensions_dir(environ: MutableMapping[str, str]) -> None:
    """Have torch compile and load ops there; for a process that is about to import DeepSpeed."""
    environ[VARIABLE] = str(torch_extensions_dir(environ))


def _environment_name(environ: Mapping[str, str]) -> str:
    """The versions for people, and a hash of all that compiled ops depend on and that hosts or environments differ in.

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
    """What ranks compute on: DeepSpeed compiles CUDA code for the devices of the host that it is on."""
    accelerator = environ.get("DS_ACCELERATOR", "")
    return "cpu" if accelerator == "cpu" else ",".join(machine.accelerator_models()) or accelerator or "cpu"
