# SPDX-License-Identifier: Apache-2.0
"""The command line with which a plan ends: a launch, a search for settings that fit, or a spec to write first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.run.resolved_run import ResolvedRun

_CHOSEN_BY_SEARCH = ("zero.stage=", "zero.offload_", "train.gradient_checkpointing", "parallel.")


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
    plugins = run.spec.plugins
    words += ["--allow-local-code"] if plugins.file is not None or plugins.script is not None else []
    return shlex.join([*words, "--dry-run"])


def format_search_command(
    run: ResolvedRun, spec: str, hostfile: str | None, overrides: Sequence[str] | None, *, here: bool = False
) -> str:
    """For a spec that does not fit: the search that writes another one. Empty for a DeepSpeed JSON."""
    if run.kind != "spec":
        return ""
    words = ["harness", "plan", spec]
    for override in overrides or ():
        if not override.startswith(_CHOSEN_BY_SEARCH):  # it would keep the value that does not fit
            words += ["--set", override]
    words += [*(["--hostfile", hostfile] if hostfile else []), *(["--here"] if here else [])]
    return shlex.join([*words, "--search", "--write", f"{Path(spec).stem}-fits.yaml"])


def format_next_after_search(write: str | None) -> str:
    """The commands for settings that were found: they become a spec, and the spec is launched."""
    if write is not None:
        return shlex.join(["harness", "launch", write, "--dry-run"])
    return "the same with `--write run.yaml`, then harness launch run.yaml --dry-run"
