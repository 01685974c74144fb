# SPDX-License-Identifier: Apache-2.0
"""`harness simulate SPEC`: the plan next to DeepSpeed's own engine on a simulated GPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.check.machine_findings import check_for_plan, find_plan_device
from harness.cli.console import exit_on_errors, log_to_stderr
from harness.cli.plan_questions import Answer, PlanOptions, Question
from harness.errors import ExitCode
from harness.facts.tested_releases import describe_untested
from harness.file_io import write_output_file
from harness.hostinfo import machine
from harness.launching.programs.simulation import simulate_rank
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.plan_usage import usage_error
from harness.plan.planner import Plan, make_plan
from harness.plan.simulation.comparison import compare_rank
from harness.plan.simulation.layer_extrapolation import extrapolate_layers, simulated_rounding_bytes
from harness.plan.simulation.request import build_request, configuration_of, fewest_layers
from harness.plan.simulation.simulated_time import compare_time
from harness.render.ds_config import render_ds_config
from harness.views.plan_simulation import (
    NO_CLOCK,
    SimulationView,
    render_simulation,
    render_trace,
    simulation_as_dict,
)
from harness.views.style import style_for


def _answer_simulate(options: PlanOptions) -> Answer:
    if options.spec is None:
        raise usage_error("`--simulate` needs a spec", "try `harness simulate ds_configs/llama-3.1-8b-zero3.yaml`")
    checked = check_for_plan(options.spec, options.overrides, options.hostfile, options.world_size, here=options.here)
    run = exit_on_errors(checked, "Nothing was simulated")
    if run.kind != "spec":
        raise usage_error("a DeepSpeed JSON names no model", "give a run spec; `harness adopt` makes one")
    plan = make_plan(run, Path.cwd(), find_plan_device(here=options.here), with_alternatives=False)
    configuration_of(plan, Path.cwd())
    if plan.memory is None or plan.settings is None or plan.memory.pooled:
        fix = "name a GPU in `cluster.gpu`, and the ranks" if plan.memory is not None else "see `harness plan`"
        raise usage_error("there is no plan for a GPU to compare with", fix)
    result, is_kept, pair = _simulate(options, plan, plan.memory, render_ds_config(plan.run).config)
    comparison = compare_rank(plan, options.rank, result)
    time = compare_time(plan, result)
    view = SimulationView(plan, result, comparison, options.rank, _versions(), is_kept, pair, time)
    if options.trace is not None:
        _write_trace(options.trace, view)
    width = shutil.get_terminal_size((110, 24)).columns
    code = ExitCode.OK if result["failed"] is None and not result.get("races") else ExitCode.FINDINGS
    return Answer(render_simulation(view, style_for(sys.stdout), width), simulation_as_dict(view), code)


def _simulate(
    options: PlanOptions, plan: Plan, memory: MemoryEstimate, ds_config: Mapping[str, Any]
) -> tuple[dict[str, Any], bool, tuple[int, int] | None]:
    """The result, whether it was kept from before, and the numbers of layers that it was extrapolated from."""
    wanted: dict[str, Any] = {"rank": options.rank, "races": options.races, "trace": options.trace is not None}
    whole = build_request(plan, ds_config, Path.cwd(), **wanted)
    if options.trace is not None and whole.body["rates"] is None:
        raise usage_error(f"there is no step to trace: {NO_CLOCK}", "leave `--trace` out")
    layers = options.layers
    if layers is None or layers == whole.layers:
        result, is_kept = simulate_rank(whole, _print_progress)
        return result, is_kept, None
    fewest = min(fewest_layers(plan), whole.layers)
    if layers < fewest:
        fix = f"give `--layers` a number from {fewest} to {whole.layers}, or leave it out"
        raise usage_error(f"{layers} layers are too few to extrapolate from: that many are gathered at once", fix)
    pair = (layers // 2, layers)
    requests = [build_request(plan, ds_config, Path.cwd(), layers=count, **wanted) for count in pair]
    (small, is_small_kept), (large, is_large_kept) = (simulate_rank(request, _print_progress) for request in requests)
    rounding = simulated_rounding_bytes(memory)
    return extrapolate_layers(small, large, (*pair, whole.layers), rounding), is_small_kept and is_large_kept, pair


def _write_trace(file: str, view: SimulationView) -> None:
    """The trace of the last step, with a line on stderr. A simulation that ran out of memory has no trace."""
    clock = view.result.get("clock")
    if not clock:
        print(f"{file} was not written: the simulation did not finish a step.", file=sys.stderr)
        return
    layers = f", {view.extrapolated_from[1]} layers" if view.extrapolated_from is not None else ""
    try:
        write_output_file(Path(file), render_trace(clock["trace"], f"{view.plan.run.name}, rank {view.rank}{layers}"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise usage_error(f"`{file}` cannot be written: {reason}", "name a file in a folder that exists") from None
    print(f"Wrote {file}. Open it at https://ui.perfetto.dev", file=sys.stderr)


def _print_progress(text: str) -> None:
    log_to_stderr(f"simulation: {text}")


def _versions() -> str:
    torch = f"torch {machine.package_version('torch')}{' (untested)' if describe_untested('torch') else ''}"
    return f"DeepSpeed {machine.package_version('deepspeed')} with {torch}"


SIMULATE = Question(lambda options: options.simulate, _answer_simulate)
