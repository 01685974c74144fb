# SPDX-License-Identifier: Apache-2.0
"""A made-up `libnvidia-ml.so.1` (`fake_nvml.c`) for the real `pynvml`: the folder for LD_LIBRARY_PATH. No tests here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("fake_nvml.c")


def build_fake_nvml(folder: Path, *, old_driver: bool = False) -> Path:
    """Compile the library into a folder, in a fraction of a second."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-DOLD_DRIVER"] if old_driver else []
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libnvidia-ml.so.1", *options, "-o", str(library), str(_SOURCE)],
        check=True,
    )
    return folder


def fake_nvml_variables(folder: Path, states: str) -> dict[str, str]:
    """Environment variables of a process whose GPUs have these states, such as `idle thermal`."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return {"LD_LIBRARY_PATH": path, "FAKE_NVML": states}
