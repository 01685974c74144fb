# SPDX-License-Identifier: Apache-2.0
"""`harness plan`: estimated memory, time and alternatives of a run, before a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.check import auto_plan
from harness.check.machine_findings import check_for_plan, find_plan_device
from harness.check.plan_report import report_plan
from harness.cli import plan_options as options
from harness.cli import simulation_options as simulation
from harness.cli.console import exit_on_errors, exit_with
from harness.cli.machine_questions import MACHINE_QUESTIONS, answer_deadline
from harness.cli.options import HereOption, HostfileOption, SetOption, WorldSizeOption
from harness.cli.output_format import OutputFormat
from harness.cli.plan_calibrate import require_calibration
from harness.cli.plan_degrees import with_degrees
from harness.cli.plan_option_checks import check_options
from harness.cli.plan_output import choose_next_command, exit_with_answer, print_report, write_files
from harness.cli.plan_questions import PlanOptions, answer_question
from harness.cli.plan_simulate import SIMULATE
from harness.errors import ExitCode
from harness.hostinfo import machine
from harness.plan.plan_usage import check_stage_and_price, parse_count_option
from harness.plan.planner import make_plan
from harness.plan.search.pinned_keys import key_of_override
from harness.plan.search.price_list import split_price_options
from harness.plan.time.calibration_file import load_calibrations

NO_ARGS_IS_HELP = True


@with_degrees
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
    max_length: options.MaxLengthOption = None,
    batch_tokens: options.BatchTokensOption = None,
    tokens: options.TokensOption = None,
    prices: options.PriceOption = None,
    deadline: options.DeadlineOption = None,
    search: options.SearchOption = False,
    min_gpus: options.MinGpusOption = False,
    cheapest: options.CheapestOption = False,
    longest: options.LongestOption = False,
    largest_model: options.LargestModelOption = False,
    price_file: options.PriceFileOption = None,
    write: options.WriteOption = None,
    plot: options.PlotOption = None,
    calibrate: options.CalibrateOption = None,
    calibration: options.CalibrationOption = None,
    long: options.LongOption = False,
    simulate: simulation.SimulateOption = False,
    rank: simulation.RankOption = None,
    layers: simulation.LayersOption = None,
    races: simulation.RacesOption = False,
    trace: simulation.TraceOption = None,
) -> None:
    """Estimate memory and time of a run and of its alternatives. Starts nothing and contacts no host.

    Without a spec, give `--model`, `--gpus` and `--gpu`, or a bare `--params`. Exit code 1: nothing fits, neither the
    run nor an alternative.

    Example: harness plan ds_configs/demo.yaml --world-size 2
    """
    price, kind_prices = split_price_options(prices)
    check_stage_and_price(zero_stage, price)
    given = PlanOptions(
        spec,
        model,
        params,
        gpus,
        gpu,
        gpus_per_node,
        host_memory,
        nvme,
        zero_stage,
        max_length,
        batch_tokens,
        tokens,
        price,
        min_gpus,
        cheapest,
        longest,
        largest_model,
        deadline,
        kind_prices,
        price_file,
        write,
        plot,
        search,
        overrides,
        hostfile,
        world_size,
        here,
        tuple(calibrate or ()),
        calibration,
        simulate,
        rank or 0,
        layers,
        races,
        trace,
    )
    check_options(given)
    if answer := answer_question(given, (*MACHINE_QUESTIONS, SIMULATE)):
        exit_with_answer(answer, format, write)
    raw, request, searched, calibrations = None, None, None, load_calibrations(calibration)
    if spec is None:
        request = given.to_request()
        spec, (raw, checked) = auto_plan.name_of(request), auto_plan.check_request(request)
    else:
        check = auto_plan.check_for_search(check_for_plan) if search else check_for_plan
        checked = check(spec, overrides, hostfile, world_size, here=here)
    run = (checked.run if checked.report.ok else None) or exit_on_errors(checked, "Nothing was planned")
    if search or (request is not None and request.stage is None):
        raw = raw or run.spec.model_dump(mode="json", exclude_unset=True)
        pinned = request.pinned if request is not None else tuple(map(key_of_override, overrides or ()))
        searched = auto_plan.find_best_plan(run, raw, spec, hostfile, calibrations, pinned)
    run = searched.plan.run if searched is not None and searched.plan is not None else run
    planned = make_plan(
        run,
        Path.cwd(),
        find_plan_device(here=here),
        tokens=None if tokens is None else parse_count_option("--tokens", tokens),
        price=price,
        local_memory=machine.host_memory().total or None,
        with_search=searched is None,
        calibrations=calibrations,
    )
    require_calibration(planned, calibrations)
    report = report_plan(planned, searched, checked, request, choose_next_command(planned, searched, given, spec))
    print_report(report, checked, format, long=long, deadline=answer_deadline(planned, given))
    write_files(report, write, plot)
    exit_with(ExitCode.FINDINGS if here and searched is None and planned.fit.fits is False else report.code)
