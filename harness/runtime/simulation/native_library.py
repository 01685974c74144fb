# SPDX-License-Identifier: Apache-2.0
"""The C++ library that makes torch accept tensors on `cuda:0` without a GPU: compiled once, cached, loaded first.

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

from harness.facts.tested_releases import TESTED_RELEASES
from harness.hostinfo.deepspeed_accelerator import find_torch_build
from harness.hostinfo.machine import package_version
from harness.hostinfo.torch_extensions import torch_extensions_dir

_SOURCE = Path(__file__).with_name("simulated_cuda.cpp")
_COMPILER_SECONDS = 300.0
_TESTED_BUILD = (
    f"simulate in a virtual environment with the same DeepSpeed and torch {' or '.join(TESTED_RELEASES['torch'])},"
    " a build for CUDA or for CPUs; `harness plan` needs neither"
)


class SimulationUnavailableError(RuntimeError):
    """The simulated device cannot exist here; the message says why in one line, `fix` what to do."""

    def __init__(self, reason: str, fix: str = "install a C++ compiler; `harness plan` needs none") -> None:
        super().__init__(reason)
        self.fix = fix


def load_native_library() -> Path:
    """Compile the library unless it is cached, and load it. Raises SimulationUnavailableError: a torch for the GPUs of
    AMD or Intel, no compiler, an error of the compiler, or torch is imported already.
    """
    version, build = package_version("torch") or "none", find_torch_build()
    if build in ("hip", "xpu"):
        raise SimulationUnavailableError(f"torch {version} is a build for {build.upper()}", _TESTED_BUILD)
    if "torch" in sys.modules:
        raise SimulationUnavailableError("torch is imported already, and would not see the simulated device")
    torch_dir = _torch_dir()
    library = library_path(version)
    if not library.is_file():
        _compile(torch_dir, library)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU of this machine is asked
    try:
        if build == "cuda":
            ctypes.CDLL(str(torch_dir / "lib" / "libtorch_cuda.so"))  # so that its device guard is not the last one
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise SimulationUnavailableError(f"`{library}` cannot be loaded: {error}", _TESTED_BUILD) from None
    return library


def library_path(version: str) -> Path:
    """The cached library for this torch, to whose folder it is linked, and this source."""
    digest = hashlib.sha256(_SOURCE.read_bytes() + f"{version} {_torch_dir()}".encode()).hexdigest()[:12]
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
            raise SimulationUnavailableError(
                f"`{compiler}` did not compile `{_SOURCE.name}` against torch {package_version('torch')}: {lines[0]}",
                _TESTED_BUILD,
            )
        Path(name).replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SimulationUnavailableError(f"`{compiler}` could not be run: {error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
