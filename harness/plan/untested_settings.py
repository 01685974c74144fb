# SPDX-License-Identifier: Apache-2.0
"""The settings of a plan that no GPU has trained with yet: what the plan says of them is an estimate."""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.devices import Device
from harness.findings import Finding, Fix
from harness.plan.settings.checkpointed_layers import tiles_mlp
from harness.plan.settings.plan_settings import PlanSettings


def untested_findings(settings: PlanSettings, device: Device | None) -> Iterator[Finding]:
    """MM019 for each of them, on a kind of GPU; EN022 for a kind on which no launch starts."""
    if device is None or device.is_cpu:
        return
    if not device.starts_ranks:
        message = f"`harness launch` starts no ranks on {device.name}: this plan is for a script of your own"
        fix = Fix("render its DeepSpeed JSON with `harness render`; a launch takes NVIDIA GPUs and the CPU")
        yield Finding("EN022", "warning", message, "cluster.gpu", fix=fix)
    keys = {
        "train.gradient_checkpointing.every": settings.checkpointing and settings.checkpoint_every > 1,
        "train.gradient_checkpointing.keep": settings.checkpointing and settings.keeps_attention,
        "train.mlp_tile_size": tiles_mlp(settings),
        "model.quantization": settings.quantization is not None,
    }
    for key, is_on in keys.items():
        if is_on:
            message = f"`{key}` has not run on CUDA: its memory and its time are estimates"
            fix = Fix("compare the first steps with the plan: `harness report`")
            yield Finding("MM019", "info", message, key, fix=fix)
