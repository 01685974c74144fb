# SPDX-License-Identifier: Apache-2.0
"""Packages and devices that a run needs and this machine lacks. Imports none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.hostinfo.training_packages import install_command
from harness.spec.run_spec import ModelSpec
from harness.spec.sections.telemetry_spec import TelemetrySpec

_TRACKER_MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""Trackers of `telemetry.trackers`, with the module that each imports."""
_ATTENTION = "model.attn_implementation"


def find_missing_software(model: ModelSpec, telemetry: TelemetrySpec, env: Mapping[str, str]) -> Iterator[Finding]:
    """An error at each key that needs what this machine lacks (EN016, MD154). `env` is `launch.env`."""
    if model.lora is not None and machine.package_version("peft") is None:
        message = "`model.lora` needs the package `peft`, which is not installed here"
        fix = Fix(f"install it on every host: {install_command('lora')}")
        yield Finding("MD154", "error", message, "model.lora", fix=fix)
    attention = model.attn_implementation
    if attention == "flash_attention_2":
        lacks = _missing_for_flash_attention(env)
        if lacks:
            fix = Fix("set `model.attn_implementation` to `sdpa`", {_ATTENTION: "sdpa"}, effect="another kernel")
            yield Finding("EN016", "error", f"`{attention}` needs {lacks}", _ATTENTION, fix=fix)
    for tracker in telemetry.trackers:
        module = _TRACKER_MODULES.get(tracker)
        if module is not None and find_spec(module) is None:
            fix = Fix(f"install it on the host of the main process: {install_command('trackers')}")
            message = f"tracker `{tracker}` needs the package `{module}`, which is not installed here"
            yield Finding("EN016", "error", message, "telemetry.trackers", fix=fix)


def _missing_for_flash_attention(env: Mapping[str, str]) -> str:
    """The package or the device; transformers also takes the kernel by the package `kernels` (read in 5.23)."""
    if find_spec("flash_attn") is None and find_spec("kernels") is None:
        return "the package `flash_attn`, which is not installed here"
    devices = machine.accelerators_for({**os.environ, **env})
    return "" if devices else "a GPU, and the ranks on this machine use the CPU"
