# SPDX-License-Identifier: Apache-2.0
"""A probe of the GPUs' health by NVML, from a process of its own and within a time limit: a broken driver may hang."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness.hostinfo import nvml_reader
from harness.hostinfo.gpu_health import HostGpus, parse_host_gpus
from harness.hostinfo.torch_probe import run_probe
from harness.interpreter import python_command

TIMEOUT_SECONDS = 15.0
"""Without persistence mode the driver wakes each GPU first, a second or more for each."""


def build_request(seconds: float) -> dict[str, Any]:
    """The request for `host_probe.py` to read the GPUs of its host."""
    source = Path(nvml_reader.__file__).read_text(encoding="utf-8")
    return {"source": source, "mark": nvml_reader.MARK, "seconds": seconds}


def probe_gpus(seconds: float = TIMEOUT_SECONDS) -> HostGpus:
    """The health of this machine's GPUs."""
    answer = run_probe(python_command(nvml_reader.__file__), os.environ, seconds, nvml_reader.MARK)
    return parse_host_gpus(answer)
