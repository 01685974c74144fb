"""Imports DeepSpeed without mlflow, which its autotuner would import where it is installed, with pandas, in seconds.

Also installs the cache of the CPU's description, and sets this environment's own folder for compiled ops.

Nothing of torch or DeepSpeed is imported before the function is called.
"""

from __future__ import annotations

import os
import sys

from harness.hostinfo.torch_extensions import set_torch_extensions_dir
from harness.runtime.patches import cpuinfo_cache


def import_deepspeed() -> None:
    """Import DeepSpeed; mlflow can be imported afterwards.

    Removes `harness/workers/stubs`, the stub for the launcher, from the path of this process and its children.
    """
    sys.path[:] = [path for path in sys.path if not _is_mlflow_stub(path)]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    other_paths = os.pathsep.join(path for path in paths if path and not _is_mlflow_stub(path))
    if other_paths:
        os.environ["PYTHONPATH"] = other_paths
    else:
        os.environ.pop("PYTHONPATH", None)
    set_torch_extensions_dir(os.environ)
    cpuinfo_cache.install_cpuinfo_cache()
    if "mlflow" in sys.modules or "deepspeed" in sys.modules:
        return
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        import deepspeed  # noqa: F401
    finally:
        del sys.modules["mlflow"]


def _is_mlflow_stub(path: str) -> bool:
    return path.endswith(os.path.join("workers", "stubs"))  # noqa: PTH118  (an entry of a path, compared as text)
