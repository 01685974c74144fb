# SPDX-License-Identifier: Apache-2.0
"""The accelerator that DeepSpeed takes in ranks, where it is neither NVIDIA's nor the CPU: the harness refuses it.

Reads files and variables, and imports no torch. The order is DeepSpeed's (`accelerator/real_accelerator.py`).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from harness.hostinfo.torch_devices import TorchDevices

TorchBuild = Literal["cuda", "hip", "xpu", "cpu"]
_OTHERS = {
    "xpu": "Intel GPUs",
    "npu": "Ascend NPUs",
    "sdaa": "Tecorigin cards",
    "mps": "Apple GPUs",
    "hpu": "Gaudi cards",
    "mlu": "Cambricon cards",
    "supa": "Biren GPUs",
    "klxpu": "Kunlunxin cards",
}
"""DeepSpeed's other accelerators, by the value of DS_ACCELERATOR."""
_PACKAGES = {
    "torch_npu": "npu",
    "torch_sdaa": "sdaa",
    "habana_frameworks": "hpu",
    "torch_mlu": "mlu",
    "torch_supa": "supa",
    "torch_xmlir": "klxpu",
}
"""Packages at which DeepSpeed takes an accelerator; of most it does not ask if there is a device."""
_BUILD = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*= *['\"]", re.MULTILINE)
_DEV, _SYS = Path("/dev"), Path("/sys")
_SIMD = re.compile(r"^simd_count [1-9]", re.MULTILINE)
_HABANA_VENDOR = "0x1da3"
_WAY_OUT = (
    "to train on the CPU set DS_ACCELERATOR=cpu, in the shell or in `launch.env`; for these devices run your own "
    "script with the JSON of `harness render`"
)


class AcceleratorProblem(NamedTuple):
    """The reason why no rank can start on the accelerator that DeepSpeed would take, as a clause; and the fix."""

    reason: str
    fix: str


def find_accelerator_problem(
    environ: Mapping[str, str], torch: TorchDevices | None, *, has_nvidia: bool
) -> AcceleratorProblem | None:
    """The problem with the accelerator of ranks that have these variables; None where they get NVIDIA's or the CPU.

    `torch` is its answer where `torch_may_take_others`, else None.
    """
    value = environ.get("DS_ACCELERATOR")
    if value == "cpu":
        return None
    if value is not None and value not in ("cuda", *_OTHERS):
        text = f"`{value}`" if value else "empty"
        return AcceleratorProblem(
            f"DS_ACCELERATOR is {text}, which DeepSpeed refuses in every rank", "unset it, or set it to `cuda` or `cpu`"
        )
    found = _find_other(value, torch)
    if found:
        return AcceleratorProblem(f"{found}, and the harness starts ranks only on NVIDIA GPUs and CPUs", _WAY_OUT)
    if value == "cuda" and not has_nvidia:
        reason = "DS_ACCELERATOR is `cuda`, and no NVIDIA device was found on this machine"
        return AcceleratorProblem(reason, "unset it, or set it to `cpu`; give a container access to the devices")
    return None


def _find_other(value: str | None, torch: TorchDevices | None) -> str:
    """A clause on an accelerator that the harness does not support; empty if there is none."""
    if value in _OTHERS:
        return f"DS_ACCELERATOR is `{value}`: DeepSpeed takes {_OTHERS[value]}"
    if torch is not None and torch.xpu_count and value is None:
        return f"{torch.build} can use {_count(torch.xpu_count, 'Intel GPU')}, which DeepSpeed takes"
    if value is None:
        for package, name in _PACKAGES.items():
            if importlib.util.find_spec(package) is not None:
                return f"`{package}` is installed, and DeepSpeed then takes {_OTHERS[name]}"
    if torch is not None and torch.hip and torch.count:
        return f"{torch.build} can use {_count(torch.count, 'AMD GPU')}, which DeepSpeed takes"
    return ""


def find_torch_build() -> TorchBuild | None:
    """The kind of torch's build, read from its `version.py`; None where that is not there."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if file is None or not file.is_file():
        return None
    match = _BUILD.search(file.read_text(encoding="utf-8", errors="replace"))
    kinds: dict[str, TorchBuild] = {"cuda": "cuda", "hip": "hip", "xpu": "xpu"}
    return kinds[match[1]] if match else "cpu"


def torch_may_take_others(environ: Mapping[str, str]) -> bool:
    """Is torch a build for AMD's or Intel's GPUs, so that it has to be asked if it can use some?"""
    return environ.get("DS_ACCELERATOR") != "cpu" and find_torch_build() in ("hip", "xpu")


def find_other_devices() -> tuple[str, ...]:
    """Devices other than NVIDIA's, counted in the kernel's files: `8 AMD GPUs`. Intel's GPUs are not counted, which
    most desktop machines have.
    """
    nodes = _SYS.glob("class/kfd/kfd/topology/nodes/*/properties")
    counts = {
        "AMD GPU": sum(_SIMD.search(_read(file)) is not None for file in nodes) if (_DEV / "kfd").exists() else 0,
        "Gaudi card": sum(
            _read(file).strip() == _HABANA_VENDOR for file in _SYS.glob("class/accel/accel[0-9]*/device/vendor")
        ),
        "Ascend NPU": sum(path.name[7:].isdigit() for path in _DEV.glob("davinci[0-9]*")),
    }
    return tuple(_count(count, name) for name, count in counts.items() if count)


def _count(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count > 1 else ''}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
