# SPDX-License-Identifier: Apache-2.0
"""Debugging aids of `telemetry`: variables that make torch and NCCL log more, and a file for DeepSpeed's FLOPs profile.

The ranks themselves run torch's profiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.spec.sections.telemetry_spec import TelemetrySpec

_DEBUG_VARIABLES = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "NCCL_DEBUG": "INFO",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""torch checks that collectives agree in shape and kind, NCCL logs its connections, and a collective that times out
writes the last ones of each rank to a file."""


def distributed_debug_env(spec: TelemetrySpec, run_dir: Path) -> dict[str, str]:
    """Variables of `telemetry.debug_distributed`; none where it is off."""
    if not spec.debug_distributed:
        return {}
    return {**_DEBUG_VARIABLES, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(run_dir / "logs" / "nccl-trace-rank-")}


def with_flops_profiler_output(config: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """The DeepSpeed JSON with a file in the run directory for its FLOPs profiler, where that is on. A name that the
    spec gives is kept and its folder is not: DeepSpeed overwrites the file, and a spec may come from somebody else.
    """
    profiler = config.get("flops_profiler")
    if not isinstance(profiler, Mapping) or not profiler.get("enabled"):
        return dict(config)
    name = Path(str(profiler.get("output_file") or "")).name
    name = "flops.txt" if name in ("", "..") else name
    return {**config, "flops_profiler": {**profiler, "output_file": str(run_dir / "profile" / name)}}
