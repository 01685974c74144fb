"""DeepSpeed without mlflow: its autotuner imports that where it is installed, and pandas with it, in seconds. And with
what is known of the CPU, and with compiled ops in this environment's own folder.

Nothing of torch or DeepSpeed is imported before the function is called.
"""

from __future__ import annotations

import os
import sys

from harness.hostinfo.torch_extensions import set_torch_extensions_dir
from harness.runtime.patches import cpuinfo_cache


def import_deepspeed() -> None:
    """Import DeepSpeed; mlflow can be imported afterwards.

    Takes `launch/lean`, which did the same for the launcher, from the path of this process and of those it starts.
    """
    sys.path[:] = [place for place in sys.path if not _is_mlflow_stub(place)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = os.pathsep.join(place for place in inherited if place and not _is_mlflow_stub(place))
    if left:
        os.environ["PYTHONPATH"] = left
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


def _is_mlflow_stub(place: str) -> bool:
    return place.endswith(os.path.join("launch", "lean"))  # noqa: PTH118  (an entry of a path, compared as text)
