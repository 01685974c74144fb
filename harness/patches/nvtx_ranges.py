# SPDX-License-Identifier: Apache-2.0
"""Makes NVTX ranges only under a profiler.

Upstream: Most functions of ZeRO are wrapped in NVTX ranges, whether a profiler runs or not.

Patch: `enable_nvtx` is true only where a variable of Nsight is in the environment.

Gain: With `zero3_leaf_params.py`, 20,576 instead of 27,741 Python calls a step of a small Llama; no difference in CPU
time that 9 rounds can show (`benchmarks/tuned_defaults.py`, `benchmarks/LOG.md`).
"""

from __future__ import annotations

import os

from harness.patches.patch_registry import Patch, Target

_PROFILER_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
"""Nsight sets one of them in the environment of the program that it profiles."""


def disable_nvtx_without_profiler() -> None:
    """For every engine of this process, from now on."""
    from deepspeed.utils import nvtx

    nvtx.enable_nvtx = any(name in os.environ for name in _PROFILER_VARIABLES)


PATCH = Patch(
    name="nvtx-ranges",
    kind="performance",
    targets=(
        Target("deepspeed.utils.nvtx:enable_nvtx", "589aa05ef0af4b88"),
        Target("deepspeed.utils.nvtx:instrument_w_nvtx", "e41eafd003401d2a"),
    ),
    remove_when="`instrument_w_nvtx` makes ranges only under a profiler",
    when="stage 3",
    is_needed=lambda run: run.stage == 3,
    before_initialize=disable_nvtx_without_profiler,
)
