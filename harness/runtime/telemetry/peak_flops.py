# SPDX-License-Identifier: Apache-2.0
"""The device and its peak FLOPS, the reference of MFU. None where no peak is known."""

from __future__ import annotations

from dataclasses import dataclass

from deepspeed.accelerator import get_accelerator

from harness.facts.devices import device_by_driver_name
from harness.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """A device. `flops` and `source` are None where no peak is known."""

    device: str
    memory: int | None
    flops: float | None
    source: str | None


def find_device_peak(spec: RunSpec) -> DevicePeak:
    """The peak of this rank's device, in the number format of the run. `telemetry.peak_flops` overrides it."""
    accelerator = get_accelerator()
    name, memory = accelerator.device_name(), None
    device = None
    if name != "cpu":
        memory = int(accelerator.total_memory())
        name = _driver_device_name(name)
        device = device_by_driver_name(name, memory)
    if spec.telemetry.peak_flops is not None:
        return DevicePeak(name, memory, spec.telemetry.peak_flops, "`telemetry.peak_flops`")
    if device is None:
        return DevicePeak(name, memory, None, None)
    if spec.precision.bf16 or spec.precision.fp16:
        return DevicePeak(name, memory, device.flops_16, f"{device.source}, 16 bit")
    return DevicePeak(name, memory, device.flops_32, f"{device.source}, fp32")


def _driver_device_name(device_type: str) -> str:
    import torch

    module = getattr(torch, device_type, None)  # torch.cuda, torch.xpu ...
    get_name = getattr(module, "get_device_name", None)
    return device_type if get_name is None else str(get_name())
