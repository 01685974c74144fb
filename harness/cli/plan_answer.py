# SPDX-License-Identifier: Apache-2.0
"""The plan of a run, of a spec or of a few words, from the options of a command; and the answers to other questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.check import auto_plan
from harness.check.fit_of_spec import search_of_run
from harness.check.fit_table import FitSearch, FitTable, make_fit_table, make_page_tables
from harness.check.machine_findings import check_for_plan, find_plan_device
from harness.check.plan_report import report_plan
from harness.check.trainer_specs import read_trainer_spec
from harness.cli.console import exit_on_errors, exit_with
from harness.cli.machine_questions import MACHINE_QUESTIONS, answer_deadline
from harness.cli.plan_calibrate import require_calibration
from harness.cli.plan_option_checks import check_options
from harness.cli.plan_output import choose_next_command, exit_with_answer, print_report, write_files, write_page
from harness.cli.plan_questions import Answer, PlanOptions, answer_question, fit_search
from harness.cli.plan_simulate import SIMULATE
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import parse_target
from harness.hostinfo import machine
from harness.hostinfo.module_probe import OwnModule, probe_module
from harness.launching.setup.code_trust import verify_code_allowed
from harness.plan.plan_usage import check_stage, parse_count_option, usage_error
from harness.plan.planner import Plan, make_plan
from harness.plan.search.pinned_keys import key_of_override
from harness.plan.search.price_list import split_price_options
from harness.plan.search.settings_search import fits_with_headroom
from harness.plan.time.calibration_file import load_calibrations
from harness.run.objective_facts import facts_of
from harness.run.resolved_run import ResolvedRun
from harness.views.plan_cheapest import render_measured


def print_plan(values: dict[str, Any]) -> None:
    """Print the answer to the question of a command line, by the names of its parameters, and end with its exit code.
    Raises UserError.
    """
    format, long, prices, trainer = (values.pop(name) for name in ("format", "long", "prices", "trainer"))
    price, kind_prices = split_price_options(prices)
    check_stage(values["zero_stage"])
    given = PlanOptions(**{**values, "price": price, "kind_prices": kind_prices, "rank": values["rank"] or 0})
    if trainer is not None and (given.search or (given.spec is None and given.zero_stage is None)):
        raise usage_error("`--as` plans one run, and a search is of `harness launch`", "leave `--as` or `--search` out")
    check_options(given)
    if given.epochs is not None and given.tokens is not None:
        given = replace(given, tokens=f"{given.epochs * parse_count_option('--tokens', given.tokens):.0f}")
    if answer := answer_question(given, (*MACHINE_QUESTIONS, SIMULATE)):
        exit_with_answer(answer, format, given.write)
    raw, request, adopted, spec = None, None, None, given.spec
    trainer_name = str(trainer.value) if trainer else ""
    if spec is None:
        request = given.to_request()
        spec, (raw, checked) = auto_plan.name_of(request), auto_plan.check_request(request)
    else:
        adopted = read_trainer_spec(spec, parse_target(None))
        trainer_name = trainer_name or (adopted.trainer if adopted else "")
        text = adopted.text if adopted else None
        spec = str(Path(spec).with_suffix(".yaml")) if adopted else spec
        check = auto_plan.check_for_search(check_for_plan) if given.search else check_for_plan
        checked = check(spec, given.overrides, given.hostfile, given.world_size, here=given.here, text=text)
    run = (checked.run if checked.report.ok else None) or exit_on_errors(checked, "Nothing was planned")
    run = run._replace(loop_optimizer=adopted.optimizer) if adopted else run
    searched, calibrations = None, load_calibrations(given.calibration)
    if given.search or (request is not None and trainer is None):
        raw = raw or run.spec.model_dump(mode="json", exclude_unset=True)
        pinned = request.pinned if request is not None else tuple(map(key_of_override, given.overrides or ()))
        searched = auto_plan.find_best_plan(run, raw, spec, given.hostfile, calibrations, pinned)
    run = searched.plan.run if searched is not None and searched.plan is not None else run
    planned = make_plan(
        run,
        Path.cwd(),
        find_plan_device(here=given.here),
        tokens=None if given.tokens is None else parse_count_option("--tokens", given.tokens),
        price=price,
        local_memory=machine.host_memory().total or None,
        with_search=searched is None,
        calibrations=calibrations,
        trainer=trainer_name,
        own_module=_probe_own_module(run, given),
        by_name=True,
    )
    require_calibration(planned, calibrations)
    report = report_plan(planned, searched, checked, request, choose_next_command(planned, searched, given, spec))
    report = replace(report, assumed=given.assumed, epochs=given.epochs)
    tables = _fit_tables(given, run, trainer_name) if report.nothing_fits or given.html else []
    report = replace(report, fit_table=tables[0]) if tables else report
    other = report.without_offload
    if other and not fits_with_headroom(other) and (ways := _fit_search(given, run, trainer_name)):
        report = replace(report, gpus_without_offload=ways.gpus_without_offload(planned.run))
    measured = _answer_measured(planned, given, of_search=searched is not None)
    answers = [each for each in (answer_deadline(planned, given), measured) if each is not None]
    print_report(report, checked, format, long=long, answers=answers)
    write_files(report, given.write, given.plot)
    write_page(report, tables, given.html)
    exit_with(ExitCode.FINDINGS if given.here and searched is None and planned.fit.verdict is False else report.code)


def _probe_own_module(run: ResolvedRun, given: PlanOptions) -> OwnModule | str:
    """Parameters and rows of a module of the user's own, where its code may run; else why they are not known."""
    if not given.allow_local_code:
        return ""
    if run.spec.plugins.file is None or facts_of(run.spec.objective).loads_model:
        message = "`--allow-local-code` is for a plan of `objective: custom` with `plugins.file`: no other runs code"
        raise usage_error(message, "leave it out")
    digest = verify_code_allowed(run.spec, Path.cwd(), allow_local_code=True).plugin_sha256
    return probe_module(run.spec.model_dump_json(), digest or "")


def _fit_tables(given: PlanOptions, run: ResolvedRun, trainer: str) -> list[FitTable]:
    """The table of ways, with those of the sliders for a page; none for a run that has none. Raises UserError where it
    cannot be made and a page is wanted.
    """
    try:
        search, gpus = _fit_search(given, run, trainer), run.parallel_dims.world_size or 1
        if search is None:
            return []
        return make_page_tables(search, gpus) if given.html else [make_fit_table(search, gpus)]
    except UserError:
        if given.html:
            raise
        return []


def _fit_search(given: PlanOptions, run: ResolvedRun, trainer: str) -> FitSearch | None:
    """The ways of training the model of a plan; None for a model without a name, and on GPUs that nobody knows."""
    if given.spec is None:
        return fit_search(given)
    tokens = None if given.tokens is None else parse_count_option("--tokens", given.tokens)
    return search_of_run(run, tokens, given.price, trainer)


def _answer_measured(planned: Plan, options: PlanOptions, *, of_search: bool) -> Answer | None:
    """The MFU of a measured rate; None without `--measured`. Raises UserError where the plan has no time."""
    if options.measured is None:
        return None
    rate = parse_count_option("--measured", options.measured)
    if planned.time is None:
        raise usage_error(
            "`--measured` is compared with a plan that has a time", "give the model, the GPU and the batch"
        )
    mfu = rate / planned.time.tokens_per_second * planned.time.mfu
    body = {"measured": {"tokens_per_second": rate, "mfu": mfu, "planned_mfu": planned.time.mfu}}
    return Answer(render_measured(rate, mfu, planned, of_search=of_search), body)
