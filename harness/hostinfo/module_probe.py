# SPDX-License-Identifier: Apache-2.0
"""The parameters of a module of the user's own, and its rows: `build_model` and `build_dataset` of a plug-in, called
in a process with limits. The module is built on the meta device, where weights take no memory; one that needs values
is built on the CPU, within the same limits. The caller has the user's consent: the code runs with the user's rights.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from harness.interpreter import python_command

_TIMEOUT_SECONDS = 120
_MARK = "harness-module: "
_PROGRAM = """
import json, resource, signal, sys
sys.path.insert(0, sys.argv[1])
from harness.interpreter import remove_repeated_root
remove_repeated_root()
import torch
from harness.errors import UserError
from harness.runtime.plugin_loader import load_plugin
from harness.spec.run_spec import RunSpec
spec = RunSpec.model_validate_json(sys.stdin.read())
pages = int(open("/proc/self/statm").read().split()[5])
limit = pages * resource.getpagesize() + (4 << 30)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
def build(device):
    torch.manual_seed(spec.train.seed)
    with torch.device(device):
        module = plugin.build_model(spec)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"it returned a `{type(module).__name__}`, should be a `torch.nn.Module`")
    return module
try:
    plugin = load_plugin(spec)
    if plugin.build_model is None:
        raise TypeError("the file has none")
    try:
        module = build("meta")
    except Exception:
        module = build("cpu")
    found = {"parameters": [[n, list(p.shape), p.requires_grad] for n, p in module.named_parameters()]}
except UserError as error:
    found = {"reason": str(error)}
except Exception as error:
    found = {"reason": "`build_model` fails: " + f"{type(error).__name__}: {error}".splitlines()[0][:200]}
def tell():
    sys.stdout.write("\\n" + sys.argv[2] + json.dumps(found) + "\\n")
    sys.stdout.flush()
tell()
signal.alarm(30)
if "parameters" in found and plugin.build_dataset is not None:
    found["rows"] = len(plugin.build_dataset(spec, "train"))
    tell()
"""


class OwnParameter(NamedTuple):
    """A parameter of the module, as `build_model` returns it."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool


class OwnModule(NamedTuple):
    """Parameters in the module's order; None for rows without a length, or that take long or fail."""

    parameters: tuple[OwnParameter, ...]
    num_rows: int | None = None


def probe_module(spec_json: str, allowed_sha256: str) -> OwnModule | str:
    """The module, or why it is not known. `allowed_sha256`: that of the plug-in's file."""
    root = str(Path(__file__).resolve().parents[2])
    try:
        process = subprocess.run(  # noqa: S603
            python_command("-c", _PROGRAM, root, _MARK),
            input=spec_json,
            env={**os.environ, "HARNESS_ALLOWED_CODE": allowed_sha256, "CUDA_VISIBLE_DEVICES": ""},
            text=True,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"`build_model` took longer than {_TIMEOUT_SECONDS} s"
    lines = [line for line in process.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        last = (process.stderr.strip().splitlines() or [f"it ended with code {process.returncode}"])[-1]
        return f"`build_model` could not be called: {last[:200]}"
    found = json.loads(lines[-1].removeprefix(_MARK))
    if "reason" in found:
        return str(found["reason"])
    if not found["parameters"]:
        return "the module of `build_model` has no parameter"
    parameters = (OwnParameter(name, tuple(shape), trained) for name, shape, trained in found["parameters"])
    return OwnModule(tuple(parameters), found.get("rows"))
