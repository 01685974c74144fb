"""How the state is cut over ranks, and cutting it anew: the business of `harness.runtime.reshape`.

That package reads and writes through this one; it is imported when it is called.
"""

from __future__ import annotations

from typing import Any

from harness.checkpoints.manifest import Manifest
from harness.runtime.rundir import RunDir


def describe(job: Any) -> dict[str, Any]:
    """Plain values. A collective."""
    from harness.runtime import reshape

    return dict(reshape.describe(job.engine, job.topology, job.config))


def needed(job: Any, saved: Manifest) -> list[Any]:
    """Why the state has to be cut anew; empty when it has not. A collective."""
    from harness.runtime import reshape

    return list(reshape.needed(saved["shape"], describe(job)) or ())


def load(job: Any, saved: Manifest) -> None:
    """Cut it anew and load it. A collective. Raises Refused where that cannot be done."""
    from harness.runtime import reshape

    reshape.load(job, saved.folder, saved)


def forget(run_dir: RunDir) -> None:
    """Remove what was made for that, once a checkpoint in the new shape is there. On one rank."""
    from harness.runtime import reshape

    reshape.forget(run_dir)
