# SPDX-License-Identifier: Apache-2.0
"""A probe of torch: the accelerators that it can use, from a process of its own and within a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.hostinfo import machine
from harness.hostinfo.torch_devices import TorchDevices, parse_torch_devices
from harness.interpreter import python_command

SCRIPT = "torch_device_probe.py"
MARK = "HARNESS-TORCH "
TIMEOUT_SECONDS = 60.0
"""Importing torch from a cold disk takes ten; a driver that hangs takes for ever."""


def build_request(scripts: Path, python_path: str, variables: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """The request for `host_probe.py` to ask torch on its host, with these variables of the spec (`launch.env`). No
    secrets: everybody on the hosts can list the command line that it is on.
    """
    source = (scripts / SCRIPT).read_text(encoding="utf-8")
    environ = {name: value for name, value in variables.items() if name not in ("PATH", "PYTHONPATH")}
    return {"source": source, "mark": MARK, "path": python_path, "environ": environ, "seconds": seconds}


def probe_torch(
    scripts: Path, seconds: float = TIMEOUT_SECONDS, variables: Mapping[str, str] | None = None
) -> TorchDevices:
    """The answer of this Python's torch, with this process's environment and these variables of the spec
    (`launch.env`). Nothing of the current folder is imported.
    """
    environ = {**os.environ, **{name: value for name, value in (variables or {}).items() if name != "PATH"}}
    answer = run_probe(python_command(str(scripts / SCRIPT)), environ, seconds, MARK)
    return parse_torch_devices(answer, machine.nvidia_driver(), environ.get("CUDA_VISIBLE_DEVICES"), seconds)


def run_probe(command: list[str], environ: Mapping[str, str], seconds: float, mark: str) -> dict[str, Any] | None:
    """The line of a probe's output that begins with `mark`; None where the probe did not end in time."""
    child = subprocess.Popen(  # noqa: S603
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)  # a process that hangs in the driver cannot be killed
        if child.stdout is not None:
            child.stdout.close()
    lines = [line.removeprefix(mark) for line in out.splitlines() if line.startswith(mark)]
    failure = {"words": f"its process ended with code {child.returncode}"}
    return dict(json.loads(lines[-1])) if lines else failure
