# SPDX-License-Identifier: Apache-2.0
"""A plan as text: the answer on one screen, with `--long` its tables, and the next command."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from harness.check.plan_report import PlanReport
from harness.run.resolved_run import ResolvedRun
from harness.units import pluralize
from harness.views.plan_details import render_details
from harness.views.plan_screen import SAID_ABOVE, render_screen
from harness.views.style import Style

_NOTHING_STARTED = "Nothing was started and no host was contacted."
_CHOSEN_BY_SEARCH = ("zero.stage=", "zero.offload_", "train.gradient_checkpointing", "parallel.")


def render_plan(report: PlanReport, style: Style, width: int = 100, *, long: bool = False) -> str:
    """The whole answer. Findings of keys that are not known are counted here, not shown."""
    blocks = [render_screen(report, style, width)]
    if long:
        blocks.append(render_details(report, style, width))
    blocks.append(_format_footer(report, width, long=long))
    return "\n\n".join(block for block in blocks if block)


def _format_footer(report: PlanReport, width: int, *, long: bool) -> str:
    errors = sum(f.severity == "error" for f in report.findings)
    warnings = sum(f.severity == "warning" and (long or f.gate not in SAID_ABOVE) for f in report.findings)
    world = report.plan.run.parallel_dims.world_size
    ranks = "unknown ranks" if world is None else pluralize(world, "rank")
    text = f"Plan: {ranks}, {pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}. {_NOTHING_STARTED}"
    if not long and report.plan.memory is not None:
        text += " More: `--long`."
    lines = textwrap.wrap(text, max(width, 40), break_on_hyphens=False)
    return "\n".join([*lines, f"Next: {report.next_command}"] if report.next_command else lines)


def format_next_command(run: ResolvedRun, spec: str, hostfile: str | None, overrides: Sequence[str] | None) -> str:
    """`harness launch` of the planned run with the same options."""
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


def format_search_command(spec: str, hostfile: str | None, overrides: Sequence[str] | None, *, here: bool) -> str:
    """For a spec that does not fit: the search that writes another one."""
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
