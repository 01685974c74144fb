# SPDX-License-Identifier: Apache-2.0
"""The command line with which a plan ends."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from harness.plan.resolved_run import ResolvedRun


def format_next_command(run: ResolvedRun, spec: str, hostfile: str | None, overrides: Sequence[str] | None) -> str:
    """`harness launch` of the planned run with the same options; empty for a DeepSpeed JSON."""
    if run.kind != "spec":
        return ""
    words = ["harness", "launch", spec]
    for override in overrides or ():
        words += ["--set", override]
    if hostfile:
        words += ["--hostfile", hostfile]
    elif run.cluster is None and (run.spec.cluster.num_nodes or 1) > 1:
        words += ["--hostfile", "HOSTFILE"]
    elif run.cluster is None and run.parallel_dims.world_size != run.spec.launch.num_gpus:
        words += ["--set", f"launch.num_gpus={run.parallel_dims.world_size}"]
    return shlex.join([*words, "--dry-run"])
