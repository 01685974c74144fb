# SPDX-License-Identifier: Apache-2.0
"""Problems that keep torch from a machine's devices. Needs nothing; milliseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.hostinfo.torch_devices import TorchDevices, find_torch_problem, format_device_names, parse_torch_devices

WELL = TorchDevices(
    "2.13.0", "13.0", count=2, capabilities=((9, 0), (9, 0)), built_for=("sm_80", "sm_90"), driver="580.65.06"
)
NONE = replace(WELL, count=0, capabilities=(), built_for=())


@pytest.mark.parametrize(
    ("torch", "why", "fix"),
    [
        (TorchDevices("2.13.0+cpu"), "torch 2.13.0+cpu is a CPU build", "--force-reinstall"),
        (TorchDevices("2.13.0+cpu", driver="535.104.05"), "is a CPU build", "for CUDA 12, which driver 535.104.05 runs"),
        (TorchDevices("2.13.0", hip="7.0"), "torch 2.13.0 is a ROCm build", "--force-reinstall"),
        (replace(NONE, driver="535.104.05"), "driver 535.104.05 is older than CUDA 13.0 of torch 2.13.0 needs (580)", "install driver 580 or newer, or install a build of torch for CUDA 12"),
        (replace(NONE, visible=""), "CUDA_VISIBLE_DEVICES is empty", "unset CUDA_VISIBLE_DEVICES"),
        (replace(NONE, visible="-1"), "CUDA_VISIBLE_DEVICES is `-1`", "unset CUDA_VISIBLE_DEVICES"),
        (replace(NONE, words="Found no NVIDIA driver"), "torch 2.13.0 for CUDA 13.0 can use none of them: Found no NVIDIA driver", "NVIDIA_DRIVER_CAPABILITIES"),
        (TorchDevices(words="ImportError: libcudart.so.13"), "torch cannot be imported: ImportError: libcudart.so.13", "reinstall torch"),
        (parse_torch_devices(None, None, None, 60.0), "torch gave no answer within 60 s", "restart of the machine"),
        (replace(WELL, capabilities=((9, 0), (7, 0))), "has no code for compute capability 7.0 (it has sm_80, sm_90)", "build of torch"),
        (replace(WELL, count=1, visible="3"), "3 ranks are requested, and torch 2.13.0 for CUDA 13.0 can use 1 of the devices (CUDA_VISIBLE_DEVICES is 3)", "fewer ranks"),
    ],
)  # fmt: skip
def test_each_trouble_is_named_with_its_remedy(torch: TorchDevices, why: str, fix: str) -> None:
    problem = find_torch_problem(torch, 3)
    assert problem is not None
    assert why in problem.reason
    assert fix in problem.fix
    assert problem.certain is torch.answered


@pytest.mark.parametrize(
    "torch",
    [
        WELL,
        replace(WELL, driver=None),
        replace(WELL, cuda="12.8", driver="535.104.05"),
        replace(WELL, capabilities=((8, 9), (9, 0))),
        replace(WELL, capabilities=((12, 0), (9, 0)), built_for=("sm_90", "compute_90")),
        replace(WELL, built_for=()),
        replace(WELL, capabilities=((10, 3), (9, 0)), built_for=("sm_90", "sm_100f")),
    ],
)
def test_devices_that_torch_can_use_are_no_trouble(torch: TorchDevices) -> None:
    assert find_torch_problem(torch, 2) is None


def test_devices_are_counted_by_kind() -> None:
    assert format_device_names(["NVIDIA H100", "NVIDIA H100", "NVIDIA A100"]) == "2 NVIDIA H100 and 1 NVIDIA A100"
