# SPDX-License-Identifier: Apache-2.0
"""`harness plan`: estimated memory, time and alternatives of a run, before a launch."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.check import auto_plan
from harness.check.auto_plan import SearchResult
from harness.check.check_file import CheckedFile
from harness.check.finding_places import place_findings
from harness.check.machine_findings import check_for_plan, find_plan_device
from harness.cli import plan_options as options
from harness.cli.console import exit_on_errors, print_findings
from harness.cli.options import HereOption, HostfileOption, SetOption, WorldSizeOption
from harness.cli.output_format import OutputFormat
from harness.hostinfo import machine
from harness.plan.bare_count import count_model_states
from harness.plan.plan_json import plan_json
from harness.plan.plan_request import PlanRequest
from harness.plan.plan_usage import check_stage_and_price, parse_count_option, usage_error
from harness.plan.planner import Plan, make_plan
from harness.spec.yaml_text import spec_as_yaml
from harness.views import plan_search as search_view
from harness.views.plan import render_plan
from harness.views.plan_next_command import format_next_command
from harness.views.plan_plot import render_memory_svg
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_EXAMPLE = "harness plan --model llama-3.1-70b --gpus 8 --gpu H100-80GB"


def plan(
    spec: options.OptionalSpec = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    here: HereOption = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
    model: options.ModelOption = None,
    params: options.ParamsOption = None,
    gpus: options.GpusOption = None,
    gpu: options.GpuOption = None,
    gpus_per_node: options.GpusPerNodeOption = None,
    host_memory: options.HostMemoryOption = None,
    nvme: options.NvmeOption = None,
    zero_stage: options.ZeroStageOption = None,
    max_length: options.MaxLengthOption = 4096,
    batch_tokens: options.BatchTokensOption = "1048576",
    tokens: options.TokensOption = None,
    price: options.PriceOption = None,
    search: options.SearchOption = False,
    min_gpus: options.MinGpusOption = False,
    write: options.WriteOption = None,
    plot: options.PlotOption = None,
) -> None:
    """Estimate memory and time of a run and of its alternatives. Starts nothing and contacts no host.

    Without a spec, give `--model`, `--gpus` and `--gpu`, or a bare `--params`.

    Example: harness plan ds_configs/demo.yaml --world-size 2
    """
    check_stage_and_price(zero_stage, price)
    num_gpus = 1 if gpus is None else gpus
    if params is not None:
        states = count_model_states(parse_count_option("--params", params), num_gpus, zero_stage, gpu)
        is_json = format is OutputFormat.json
        print(search_view.model_states_as_json(states) if is_json else search_view.render_model_states(states))
        return
    raw, request = None, None
    if spec is None:
        if model is None or gpu is None or (gpus is None and not min_gpus):
            raise usage_error("a plan needs a spec, or `--model`, `--gpus` and `--gpu`", f"try `{_EXAMPLE}`")
        step_tokens = int(parse_count_option("--batch-tokens", batch_tokens))
        request = PlanRequest(
            model, num_gpus, gpu, gpus_per_node, host_memory, nvme, zero_stage, max_length, step_tokens
        )
        if min_gpus:
            result = auto_plan.find_min_gpus(request)
            is_json = format is OutputFormat.json
            print(search_view.min_gpus_as_json(result) if is_json else search_view.render_min_gpus(model, gpu, result))
            return
        spec = auto_plan.name_of(request)
        raw, checked = auto_plan.check_request(request)
    elif model is not None or min_gpus:
        raise usage_error(f"a spec and `{'--model' if model else '--min-gpus'}` are both given", "leave the spec out")
    else:
        checked = check_for_plan(spec, overrides, hostfile, world_size, here=here)
    run = exit_on_errors(checked, "Nothing was planned")
    searched = None
    if search or (request is not None and request.stage is None):
        raw = raw or run.spec.model_dump(mode="json", exclude_unset=True)
        searched = auto_plan.find_best_plan(run, raw, spec, hostfile)
    run = searched.plan.run if searched is not None and searched.plan is not None else run
    total = None if tokens is None else parse_count_option("--tokens", tokens)
    memory = machine.host_memory().total or None
    planned = make_plan(run, Path.cwd(), find_plan_device(here=here), tokens=total, price=price, local_memory=memory)
    next_command = "" if request or searched else format_next_command(run, spec, hostfile, overrides)
    _print_plan(planned, searched, checked, format, next_command)
    _write_files(planned, searched, write, plot)


def _print_plan(
    planned: Plan, searched: SearchResult | None, checked: CheckedFile, format: OutputFormat, next_command: str
) -> None:
    findings = place_findings(planned.findings, checked.source if searched is None else None)
    if findings:
        print_findings(findings, checked.lines_of)
    if format is OutputFormat.json:
        extra = {} if searched is None else search_view.search_as_dict(searched)
        print(json.dumps({**plan_json(planned), **extra}, indent=2))
        return
    style, width = style_for(sys.stdout), shutil.get_terminal_size((110, 24)).columns
    if searched is not None:
        print(search_view.render_search(searched, style, width))
        print()
    print(render_plan(planned, [*checked.report.findings, *findings], next_command, style, width))


def _write_files(planned: Plan, searched: SearchResult | None, write: str | None, plot: str | None) -> None:
    """The spec of the search and the picture, with a line on stderr for each."""
    if write is not None:
        if searched is None or searched.best is None:
            raise usage_error("there is nothing to write: no settings were found", "add `--search`")
        head = f"# {searched.best.title}: found by `harness plan --search`.\n"
        _write_text(write, spec_as_yaml(searched.raw, head))
        print(f"Wrote {write}. Next: harness validate-config {shlex.quote(write)}", file=sys.stderr)
    if plot is not None:
        if not planned.alternatives:
            raise usage_error(
                "there is nothing to draw: the plan has no memory", "give the model, the ranks and the batch"
            )
        _write_text(plot, render_memory_svg(plan_json(planned)))
        print(f"Wrote {plot}", file=sys.stderr)


def _write_text(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise usage_error(f"`{file}` cannot be written: {reason}", "name a file in a folder that exists") from None
