# SPDX-License-Identifier: Apache-2.0
"""The C++ library that makes a torch without CUDA accept tensors on `cuda:0`: compiled once, cached, loaded first.

Imports no torch: the library registers its hooks before torch looks for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.hostinfo.deepspeed_accelerator import find_torch_build
from harness.hostinfo.machine import package_version
from harness.hostinfo.torch_extensions import torch_extensions_dir

TESTED_TORCH = ("2.13",)
"""Minor versions: the library is compiled against private classes of torch, whose layout differs between them."""
_SOURCE = Path(__file__).with_name("simulated_cuda.cpp")
_COMPILER_SECONDS = 300.0
_CPU_TORCH = (
    f"install a CPU build of torch {TESTED_TORCH[-1]} and the same DeepSpeed in a virtual environment of its own, and"
    " simulate from there; `harness plan` needs neither"
)


class SimulationUnavailableError(RuntimeError):
    """The simulated device cannot exist here; the message says why in one line, `fix` what to do."""

    def __init__(self, reason: str, fix: str = "install a C++ compiler; `harness plan` needs none") -> None:
        super().__init__(reason)
        self.fix = fix


def load_native_library() -> Path:
    """Compile the library unless it is cached, and load it. Raises SimulationUnavailableError: another torch than the
    tested ones or no CPU build, no compiler, an error of the compiler, or torch is imported already.
    """
    version = package_version("torch") or "none"
    if version.rpartition(".")[0] not in TESTED_TORCH:
        raise SimulationUnavailableError(
            f"it was tested with torch {' and '.join(TESTED_TORCH)}, and torch {version} is installed", _CPU_TORCH
        )
    build = find_torch_build()
    if build not in ("cpu", None):
        raise SimulationUnavailableError(
            f"torch {version} is a build for {build.upper()}, whose own device hooks the simulated ones would meet",
            _CPU_TORCH,
        )
    if "torch" in sys.modules:
        raise SimulationUnavailableError("torch is imported already, and would not see the simulated device")
    torch_dir = _torch_dir()
    library = library_path(version)
    if not library.is_file():
        _compile(torch_dir, library)
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise SimulationUnavailableError(f"`{library}` cannot be loaded: {error}") from None
    return library


def library_path(version: str) -> Path:
    """The cached library for this torch and this source."""
    digest = hashlib.sha256(_SOURCE.read_bytes() + version.encode()).hexdigest()[:12]
    return torch_extensions_dir() / "harness_simulated_cuda" / f"simulated_cuda-torch-{version}-{digest}.so"


def _torch_dir() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SimulationUnavailableError("torch is not installed")
    return Path(spec.origin).parent


def _compile(torch_dir: Path, library: Path) -> None:
    """Compile into a temporary file next to the library, then rename it: two processes may do this at once."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None or shutil.which(compiler) is None:
        raise SimulationUnavailableError(
            f"there is no C++ compiler `{compiler or 'c++'}`, and the library is compiled once"
        )
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".simulated_cuda-", suffix=".so", dir=library.parent)
    except OSError as error:
        raise SimulationUnavailableError(
            f"the compiled library has no place: {error.strerror or error}: `{library.parent}`"
        ) from None
    os.close(handle)
    lib_dir = str(torch_dir / "lib")
    command = [
        compiler,
        "-O1",
        "-std=c++20",
        "-fPIC",
        "-shared",
        str(_SOURCE),
        f"-I{torch_dir / 'include'}",
        f"-L{lib_dir}",
    ]
    command += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{lib_dir}", "-o", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILER_SECONDS, check=False)  # noqa: S603
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
            raise SimulationUnavailableError(f"`{compiler}` did not compile `{_SOURCE.name}`: {lines[0]}")
        Path(name).replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SimulationUnavailableError(f"`{compiler}` could not be run: {error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
