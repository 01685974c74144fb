# SPDX-License-Identifier: Apache-2.0
"""torch's answer about a machine's accelerators, and the problem that keeps it from using them. Runs no probe.

The answer is that of `torch_device_probe.py`. Without a device that torch can use, DeepSpeed trains on the CPU and
says so in one line of its log (`accelerator/real_accelerator.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_MIN_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The first driver that runs programs of a CUDA major release. Source: NVIDIA's "CUDA Compatibility", minor version
compatibility, table 1.
"""
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)")


_TRAINS_ON_CPU = "DeepSpeed would train on the CPU, with one warning in its log"


class TorchProblem(NamedTuple):
    """The reason why torch cannot use the devices, as a clause, the consequence for ranks, and the fix."""

    reason: str
    fix: str
    consequence: str = _TRAINS_ON_CPU
    certain: bool = True
    """False where torch gave no answer in time, which a slow disk may explain."""


@dataclass(frozen=True, slots=True)
class TorchDevices:
    """One answer. `words`: why torch cannot be imported or can use no device, or why there is no answer."""

    version: str | None = None
    cuda: str | None = None
    """The CUDA release of the build; None for a build without."""
    hip: str | None = None
    """The ROCm release of a build for AMD's GPUs."""
    count: int = 0
    """Devices that torch can use."""
    capabilities: tuple[tuple[int, int], ...] = ()
    """Compute capability of each."""
    built_for: tuple[str, ...] = ()
    """The architectures of its machine code, such as `sm_90`."""
    driver: str | None = None
    """The version of NVIDIA's driver, where it is known."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES; None where it is not set."""
    answered: bool = True
    words: str = ""
    xpu: str | None = None
    """The release of a build for Intel's GPUs."""
    xpu_count: int = 0
    """Intel GPUs that torch can use."""
    names: tuple[str, ...] = ()
    """CUDA's names of the devices; that of a MIG slice has `MIG`."""

    @property
    def build(self) -> str:
        """`torch 2.13.0 for CUDA 13.0`."""
        releases = {"CUDA": self.cuda, "ROCm": self.hip, "XPU": self.xpu}
        kinds = (f" for {name} {release}" for name, release in releases.items() if release)
        return f"torch {self.version}{next(kinds, ', a CPU build')}"

    @property
    def slices(self) -> tuple[str, ...]:
        """The names of the devices that are parts of a GPU (MIG)."""
        return tuple(name for name in self.names if " MIG " in f"{name} ")


def parse_torch_devices(
    raw: Mapping[str, Any] | None, driver: str | None, visible: str | None, seconds: float
) -> TorchDevices:
    """`raw` is the probe's answer, None without an answer in so many seconds.

    Raises TypeError or ValueError for another kind of answer.
    """
    if raw is None:
        reason = f"no answer within {seconds:.0f} s"
        return TorchDevices(driver=driver, visible=visible, answered=False, words=reason)
    return TorchDevices(
        version=_optional_text(raw.get("version")),
        cuda=_optional_text(raw.get("cuda")),
        hip=_optional_text(raw.get("hip")),
        count=int(raw.get("count", 0)),
        capabilities=tuple((int(major), int(minor)) for major, minor in raw.get("capabilities", ())),
        built_for=tuple(map(str, raw.get("built_for", ()))),
        driver=driver,
        visible=visible,
        words=str(raw.get("words", ""))[:400],
        xpu=_optional_text(raw.get("xpu")),
        xpu_count=int(raw.get("xpu_count", 0)),
        names=tuple(map(str, raw.get("names", ()))),
    )


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(value)


def format_device_names(names: Sequence[str]) -> str:
    """`8 NVIDIA H100`, for people."""
    return " and ".join(f"{count} {name}" for name, count in Counter(names).items())


def find_torch_problem(torch: TorchDevices, num_ranks: int = 1) -> TorchProblem | None:
    """The problem that keeps `num_ranks` ranks from a machine's NVIDIA devices; None if there is none."""
    if not torch.answered:
        return TorchProblem(
            f"torch gave {torch.words}",
            "check whether `nvidia-smi` and `python -c 'import torch; torch.cuda.init()'` return there: a hung "
            "driver needs a restart of the machine",
            "ranks would hang in torch, too",
            certain=False,
        )
    if torch.version is None:
        return TorchProblem(
            f"torch cannot be imported: {torch.words}", "reinstall torch, a build for CUDA", "no rank would start"
        )
    if torch.cuda is None:
        return TorchProblem(
            f"torch {torch.version} is a {'ROCm' if torch.hip else 'XPU' if torch.xpu else 'CPU'} build",
            _other_build_fix(torch.driver),
        )
    if torch.count == 0:
        return _explain_no_devices(torch)
    return _check_device_count(torch, num_ranks)


def _check_device_count(torch: TorchDevices, num_ranks: int) -> TorchProblem | None:
    unsupported = [capability for capability in torch.capabilities if not _can_run_on(capability, torch.built_for)]
    if unsupported:
        supported = ", ".join(torch.built_for)
        return TorchProblem(
            f"{torch.build} has no code for compute capability {unsupported[0][0]}.{unsupported[0][1]} "
            f"(it has {supported})",
            "install a build of torch that has",
            "the ranks there would fail at the first operation on the device",
        )
    if torch.count < num_ranks:
        if torch.slices:
            return TorchProblem(
                f"{num_ranks} ranks are requested, and CUDA gives a process one slice of all GPUs in MIG mode "
                f"({torch.slices[0]})",
                "start one rank, or turn MIG off (`nvidia-smi -mig 0`, as root)",
                "the ranks beyond it would fail at their first use of CUDA, and the others would wait for them",
            )
        hidden = f" (CUDA_VISIBLE_DEVICES is {torch.visible})" if torch.visible else ""
        return TorchProblem(
            f"{num_ranks} ranks are requested, and {torch.build} can use {torch.count} of the devices{hidden}",
            "start fewer ranks, or check whether the container, the scheduler or CUDA_VISIBLE_DEVICES hides the others",
            "the ranks beyond them would fail at their first use of CUDA, and the others would wait for them",
        )
    return None


def _explain_no_devices(torch: TorchDevices) -> TorchProblem:
    major = int(torch.cuda.partition(".")[0]) if torch.cuda and torch.cuda.partition(".")[0].isdigit() else 0
    required_driver, installed_driver = _MIN_DRIVERS.get(major), _driver_major(torch.driver)
    if required_driver is not None and installed_driver is not None and installed_driver < required_driver:
        newest_cuda = max((cuda for cuda, oldest in _MIN_DRIVERS.items() if oldest <= installed_driver), default=None)
        other = f", or install a build of torch for CUDA {newest_cuda}" if newest_cuda else ""
        return TorchProblem(
            f"driver {torch.driver} is older than CUDA {torch.cuda} of torch {torch.version} needs ({required_driver})",
            f"install driver {required_driver} or newer{other}",
        )
    if torch.visible is not None and torch.visible.strip() == "NoDevFiles":
        return TorchProblem(
            "CUDA_VISIBLE_DEVICES is `NoDevFiles`: Slurm gave this job no GPU",
            "request GPUs, such as by `--gpus-per-node`",
        )
    if torch.visible is not None and torch.visible.strip() in ("", "-1"):
        value = f"`{torch.visible.strip()}`" if torch.visible.strip() else "empty"
        return TorchProblem(f"CUDA_VISIBLE_DEVICES is {value}, so that torch sees none", "unset CUDA_VISIBLE_DEVICES")
    reason = f": {torch.words}" if torch.words else ""
    return TorchProblem(
        f"{torch.build} can use none of them{reason}",
        "in a container, start it with `--gpus all` and with `compute` in NVIDIA_DRIVER_CAPABILITIES; else "
        "reinstall the driver",
    )


def _other_build_fix(driver: str | None) -> str:
    """pip takes an installed build for any other of the same version, unless it is forced."""
    installed_driver = _driver_major(driver)
    newest_cuda = max(
        (cuda for cuda, oldest in _MIN_DRIVERS.items() if installed_driver is not None and oldest <= installed_driver),
        default=None,
    )
    build = (
        f"for CUDA {newest_cuda}, which driver {driver} runs" if newest_cuda else "for the CUDA that the driver runs"
    )
    return f"install a build of torch {build} (pip install --force-reinstall torch, from the index of that build)"


def _driver_major(driver: str | None) -> int | None:
    head = (driver or "").partition(".")[0]
    return int(head) if head.isdigit() else None


def _can_run_on(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Machine code runs on its own major release from its minor one on; `compute_` is translated for all later ones."""
    architectures = [match.groups() for name in built_for if (match := _ARCHITECTURE.fullmatch(name))]
    codes = [(kind, (int(major), int(minor))) for kind, major, minor in architectures]
    fits = any(code <= capability and (kind == "compute" or code[0] == capability[0]) for kind, code in codes)
    return fits or len(architectures) < len(built_for) or not built_for
