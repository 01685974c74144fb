# SPDX-License-Identifier: Apache-2.0
"""Imports DeepSpeed without mlflow.

Upstream: `deepspeed.autotuning` imports mlflow where it is installed, and mlflow imports pandas, even if nothing uses
either.

Patch: While DeepSpeed is imported, `mlflow` cannot be found; afterwards it can. For the processes of DeepSpeed's
launcher, a stub of that name (`harness/workers/stubs`) is on the path. Nothing of torch or DeepSpeed is imported before
the function is called.

Gain: 5.5 s of CPU time for `import deepspeed` with mlflow installed, 2.6 s without, in four processes and more of each
launch (`benchmarks/LOG.md`, start-up).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from harness.hostinfo.torch_extensions import set_torch_extensions_dir
from harness.patches import cpuinfo_cache
from harness.patches.patch_registry import Patch, PatchFacts, Switches, Target, select_patch


def import_deepspeed(switches: Switches = "auto") -> None:
    """Import DeepSpeed, with the patches that act at its import: this one and `cpuinfo_cache.py`, unless `switches`
    (`launch.patches` of the run spec) or a changed target forbids one. mlflow can be imported afterwards.

    Removes `harness/workers/stubs`, the stub for the launcher, from the path of this process and its children, and sets
    this environment's own folder for compiled ops.
    """
    sys.path[:] = [path for path in sys.path if not _is_mlflow_stub(path)]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    other_paths = os.pathsep.join(path for path in paths if path and not _is_mlflow_stub(path))
    if other_paths:
        os.environ["PYTHONPATH"] = other_paths
    else:
        os.environ.pop("PYTHONPATH", None)
    set_torch_extensions_dir(os.environ)
    if select_patch(cpuinfo_cache.PATCH, PatchFacts(), switches).state == "applied":
        cpuinfo_cache.install_cpuinfo_cache()
    if "mlflow" in sys.modules or "deepspeed" in sys.modules:
        return
    if select_patch(PATCH, PatchFacts(), switches).state != "applied":
        import deepspeed

        return
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        import deepspeed  # noqa: F401
    finally:
        del sys.modules["mlflow"]


def read_switches(file: Path) -> Switches:
    """`launch.patches` of the run spec in a file of a run or a checkpoint; `auto` where it cannot be read."""
    try:
        switches: Switches = json.loads(file.read_text(encoding="utf-8"))["spec"]["launch"]["patches"]
    except (OSError, ValueError, LookupError, TypeError):
        return "auto"
    return switches


def _is_mlflow_stub(path: str) -> bool:
    return path.endswith(os.path.join("workers", "stubs"))  # noqa: PTH118  (an entry of a path, compared as text)


PATCH = Patch(
    name="no-mlflow",
    kind="start-up",
    targets=(Target("deepspeed.autotuning.autotuner:mlflow", "d6dcee33f2ad0eab"),),
    remove_when="`deepspeed.autotuning` imports mlflow when it tunes, not when it is imported",
    when="all runs",
    acts_at_import=True,
    upstream="https://github.com/deepspeedai/DeepSpeed/pull/2495",
)
