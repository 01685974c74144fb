# SPDX-License-Identifier: Apache-2.0
"""Packages and devices that a run needs and this machine lacks. Imports none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.hostinfo.training_packages import install_command
from harness.plan.tuned_defaults.attention_kernel import missing_package
from harness.spec.run_spec import ModelSpec
from harness.spec.sections.data_spec import DataSpec
from harness.spec.sections.telemetry_spec import TelemetrySpec
from harness.units import format_bytes

_TRACKER_MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""Trackers of `telemetry.trackers`, with the module that each imports."""
_ATTENTION = "model.attn_implementation"


def find_missing_software(
    model: ModelSpec, data: DataSpec, telemetry: TelemetrySpec, env: Mapping[str, str]
) -> Iterator[Finding]:
    """An error at each key that needs what this machine lacks (EN016, MD154, MD162). `env` is `launch.env`."""
    if model.lora is not None and machine.package_version("peft") is None:
        message = "`model.lora` needs the package `peft`, which is not installed here"
        fix = Fix(f"install it on every host: {install_command('lora')}")
        yield Finding("MD154", "error", message, "model.lora", fix=fix)
    if model.quantization is not None and machine.package_version("bitsandbytes") is None:
        message = "`model.quantization` needs the package `bitsandbytes`, which is not installed here"
        fix = Fix(f"install it on every host: {install_command('qlora')}")
        yield Finding("MD162", "error", message, "model.quantization", fix=fix)
    attention = model.attn_implementation
    if attention in ("flash_attention_2", "flash_attention_3"):
        lacks = _missing_for_flash_attention(attention, env)
        if lacks:
            other, cost = _kernel_without_package(data)
            fix = Fix(f"set `model.attn_implementation` to `{other}`", {_ATTENTION: other}, effect="another kernel")
            yield Finding("EN016", "error", f"`{attention}` needs {lacks}", _ATTENTION, notes=(cost,), fix=fix)
    for tracker in telemetry.trackers:
        module = _TRACKER_MODULES.get(tracker)
        if module is not None and find_spec(module) is None:
            fix = Fix(f"install it on the host of the main process: {install_command('trackers')}")
            message = f"tracker `{tracker}` needs the package `{module}`, which is not installed here"
            yield Finding("EN016", "error", message, "telemetry.trackers", fix=fix)


def _kernel_without_package(data: DataSpec) -> tuple[str, str]:
    """The kernel to take instead, and what the missing package costs. `auto` takes one that the run can have."""
    if not data.packing:
        return "sdpa", "`sdpa` uses torch's own flash kernel in 16 bit if rows are not padded"
    size = format_bytes(data.max_length**2)
    return (
        "auto",
        "`auto` uses torch's own flash kernel without a mask (`sdpa_varlen`) if the run allows it; `sdpa` would "
        f"make a mask of {size} a row, and take no flash kernel",
    )


def _missing_for_flash_attention(kernel: str, env: Mapping[str, str]) -> str:
    """The package or the device. With the package `kernels` transformers would load one of the Hub; none ever runs."""
    package = missing_package(kernel)
    if package is not None:
        return f"the package `{package}`, which is not installed here"
    devices = machine.accelerators_for({**os.environ, **env})
    return "" if devices else "a GPU, and the ranks on this machine use the CPU"
