# SPDX-License-Identifier: Apache-2.0
"""The folder in which torch compiles DeepSpeed's ops: one for each environment and kind of machine, of this user alone.

torch gives all environments of a user one folder by version of Python and CUDA (`torch/utils/cpp_extension.py`,
`_get_build_directory`). Each environment compiles over the ops of the others, under the runs that use them. A rank that
waits for another environment's compiler then loads the result: DeepSpeed 0.19.8 with the ops of 0.18.2 ended with
`module 'deepspeed_shm_comm' has no attribute 'vector_kernel_level'`.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import importlib.util
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

from harness.hostinfo import machine
from harness.planted_files import PlantedFile, find_planted, find_planted_below

VARIABLE = "TORCH_EXTENSIONS_DIR"
COMPILE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
STAMP = "deepspeed-harness.json"
"""The file in it that names the ops which have been loaded once, by environment."""


def torch_extensions_dir(environ: Mapping[str, str] | None = None) -> Path:
    """TORCH_EXTENSIONS_DIR where the user has set it, else this environment's own folder in torch's cache.

    Every process computes it on its own host: home, torch and processor may differ there.
    """
    env = os.environ if environ is None else environ
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    return _cache_folder(env) / "torch_extensions" / _environment_name(env)


def _cache_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path.home() raises without a home


def set_torch_extensions_dir(environ: MutableMapping[str, str]) -> None:
    """Make torch compile and load ops there; for a process before its import of DeepSpeed."""
    environ[VARIABLE] = str(torch_extensions_dir(environ))


def set_compile_cache_dir(environ: MutableMapping[str, str]) -> None:
    """Keep the code that `torch.compile` makes and loads in a folder that nobody else can write. torch takes
    `torchinductor_USER` in the temporary folder, whoever made it there (`torch/_inductor/runtime/cache_dir_utils.py`).
    """
    if environ.get(COMPILE_VARIABLE):
        return
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid_{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / f"torchinductor_{user}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    if find_planted(folder) is not None:
        environ[COMPILE_VARIABLE] = str(_cache_folder(environ) / "harness" / "torchinductor")


def describe_unwritable(folder: Path) -> str:
    """The reason why a folder, which may not exist yet, cannot be written to; or empty. Leaves nothing there."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"0" * 4096)
    except OSError as error:
        return f"`{place}` cannot be written: {(error.strerror or str(error)).lower()}"
    return ""


def find_planted_ops(root: Path, ops: Iterable[str]) -> PlantedFile | None:
    """The first of the folder, its stamp and the compiled files of these ops that another user may have written."""
    found = find_planted(root) or find_planted(root / STAMP)
    places = (place for op in ops for place in (root / op, *root.glob(f"*/{op}")))
    return found or next((planted for place in places if (planted := find_planted_below(place))), None)


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
