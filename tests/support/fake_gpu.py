# SPDX-License-Identifier: Apache-2.0
"""A machine with an NVIDIA GPU, made up: an `nvidia-smi` for PATH and a `torch` for PYTHONPATH. No tests here."""

from __future__ import annotations

import os
from pathlib import Path

CPU_BUILD = "version.cuda = None\ncuda.is_available = lambda: False\n"
"""As `torch.version` and `torch.cuda` are in a build without CUDA."""
ONE_H200 = (
    "version.cuda = '13.0'\ncuda.is_available = lambda: True\ncuda.device_count = lambda: 1\n"
    "cuda.get_device_capability = lambda index: (9, 0)\ncuda.get_arch_list = lambda: ['sm_80', 'sm_90']\n"
)
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
  *query-gpu=index*) echo "0, NVIDIA H200, 143771";;
  *query-gpu=name*) echo "NVIDIA H200, 143771";;
  *query-gpu=driver*) echo "{driver}";;
  "topo -m") cat "$(dirname "$0")/topology";;
  "nvlink -s") cat "$(dirname "$0")/nvlink";;
  *) echo "NVIDIA-SMI";;
esac
"""


def made_up_gpu(folder: Path, torch: str, version: str = "2.13.0", driver: str = "580.65.06") -> dict[str, str]:
    """Environment variables of that machine. `torch` is the text of the module, behind empty `version` and `cuda`; it
    says by the file `imported` in `folder` that it was imported.
    """
    for name in ("bin", "site/torch", f"site/torch-{version}.dist-info"):
        (folder / name).mkdir(parents=True)
    smi = folder / "bin" / "nvidia-smi"
    smi.write_text(_SMI.format(driver=driver))
    smi.chmod(0o755)
    (folder / "bin" / "topology").write_text(TOPOLOGY)
    (folder / "bin" / "nvlink").write_text(NVLINK)
    head = "import types\nfrom pathlib import Path\n"
    head += f"Path({str(folder / 'imported')!r}).touch()\n__version__ = {version!r}\n"
    head += "version, cuda = types.SimpleNamespace(hip=None), types.SimpleNamespace()\n"
    (folder / "site" / "torch" / "__init__.py").write_text(head + torch)
    (folder / "site" / f"torch-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    )
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PATH": f"{smi.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": path,
        "DS_ACCELERATOR": "",
        "CUDA_VISIBLE_DEVICES": "0",
    }
