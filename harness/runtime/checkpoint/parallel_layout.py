"""How the state is cut over ranks, and cutting it anew: the business of `harness.runtime.checkpoint.reshard`.

That package reads and writes through this one; it is imported when it is called.
"""

from __future__ import annotations

from typing import Any

from harness.checkpoints.manifest import Manifest
from harness.runtime.context import RunContext
from harness.runtime.run_config import RunDir


def describe_job_layout(job: RunContext) -> dict[str, Any]:
    """Plain values. A collective."""
    from harness.runtime.checkpoint import reshard

    return dict(reshard.describe_layout(job.engine, job.topology, job.config))


def reshard_reasons(job: RunContext, saved: Manifest) -> list[Any]:
    """Why the state has to be cut anew; empty when it has not. A collective."""
    from harness.runtime.checkpoint import reshard

    return list(reshard.layout_changes(saved["shape"], describe_job_layout(job)) or ())


def load_resharded(job: RunContext, saved: Manifest) -> None:
    """Cut it anew and load it. A collective. Raises Refused where that cannot be done."""
    from harness.runtime.checkpoint import reshard

    reshard.load_universal(job, saved.folder, saved)


def remove_converted(run_dir: RunDir) -> None:
    """Remove what was made for that, once a checkpoint in the new shape is there. On one rank."""
    from harness.runtime.checkpoint import reshard

    reshard.remove_converted(run_dir)
