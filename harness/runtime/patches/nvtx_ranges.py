"""NVTX ranges only under a profiler: DeepSpeed puts them around most functions of ZeRO, also where nobody listens."""

from __future__ import annotations

import os

from deepspeed.utils import nvtx

_PROFILER_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
"""Nsight sets one of them in the environment of the program that it profiles."""


def disable_nvtx_without_profiler() -> None:
    """For every engine of this process, from now on."""
    nvtx.enable_nvtx = any(name in os.environ for name in _PROFILER_VARIABLES)
