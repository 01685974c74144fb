# SPDX-License-Identifier: Apache-2.0
"""A machine with GPUs, made up: an `nvidia-smi` for PATH and a `torch` for PYTHONPATH. No tests here."""

from __future__ import annotations

import os
from pathlib import Path

CPU_BUILD = "version.cuda = None\ncuda.is_available = lambda: False\n"
"""As `torch.version` and `torch.cuda` are in a build without CUDA."""
NO_DRIVER = (
    "version.cuda = '13.0'\ncuda.is_available = lambda: False\n"
    "def init():\n    raise RuntimeError('Found no NVIDIA driver on your system.\\nPlease check')\ncuda.init = init\n"
)
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-47\t0\nGPU1\tNV18\t X \tSYS\t48-95\t1\nNIC0\tPIX\tSYS\t X \t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)
NVLINK = "".join(
    f"GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})\n" + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for gpu in (0, 1)
)
_SMI = """\
#!/bin/sh
case "$*" in
  *query-gpu=index*) for i in {indices}; do echo "$i, NVIDIA H200, 143771"; done;;
  *query-gpu=name*) for i in {indices}; do echo "NVIDIA H200, 143771"; done;;
  *query-gpu=driver*) echo "{driver}";;
  "topo -m") cat "$(dirname "$0")/topology";;
  "nvlink -s") cat "$(dirname "$0")/nvlink";;
  -L) for i in {indices}; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done;;
  *) echo "NVIDIA-SMI";;
esac
"""


def cuda_torch(count: int, name: str = "NVIDIA H200") -> str:
    """The text of a torch for CUDA that can use so many devices."""
    return (
        f"version.cuda = '13.0'\ncuda.is_available = lambda: True\ncuda.device_count = lambda: {count}\n"
        "cuda.get_device_capability = lambda index: (9, 0)\ncuda.get_arch_list = lambda: ['sm_80', 'sm_90']\n"
        f"cuda.get_device_name = lambda index: {name!r}\n"
    )


ONE_H200 = cuda_torch(1)
ROCM = ONE_H200.replace("version.cuda = '13.0'", "version.cuda, version.hip = None, '7.0'")
"""A torch for ROCm that can use an AMD GPU by the names of `torch.cuda`."""
XPU = (
    CPU_BUILD
    + "version.xpu = '20250301'\nxpu = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)\n"
)


def made_up_gpu(
    folder: Path, torch: str, version: str = "2.13.0", driver: str = "580.65.06", count: int = 1
) -> dict[str, str]:
    """Environment variables of a machine with `count` GPUs. `torch` is the text of the module, behind empty `version`
    and `cuda`; it says by the file `imported` in `folder` that it was imported.
    """
    for name in ("bin", "site/torch", f"site/torch-{version}.dist-info"):
        (folder / name).mkdir(parents=True)
    smi = folder / "bin" / "nvidia-smi"
    if count:
        smi.write_text(_SMI.format(driver=driver, indices=" ".join(map(str, range(count)))))
        smi.chmod(0o755)
    (folder / "bin" / "topology").write_text(TOPOLOGY)
    (folder / "bin" / "nvlink").write_text(NVLINK)
    head = "import types\nfrom pathlib import Path\n"
    head += f"Path({str(folder / 'imported')!r}).touch()\n__version__ = {version!r}\n"
    head += "version, cuda = types.SimpleNamespace(hip=None), types.SimpleNamespace()\n"
    (folder / "site" / "torch" / "__init__.py").write_text(head + torch)
    build = "hip" if torch == ROCM else "xpu" if torch == XPU else "cuda"
    (folder / "site" / "torch" / "version.py").write_text(
        f"from typing import Optional\n{build}: Optional[str] = '1'\n"
    )
    (folder / "site" / f"torch-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    )
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PATH": f"{smi.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": path,
        "DS_ACCELERATOR": "cuda",
        "CUDA_VISIBLE_DEVICES": "0",
    }
