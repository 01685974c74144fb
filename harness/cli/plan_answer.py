# SPDX-License-Identifier: Apache-2.0
"""The plan of a run, of a spec or of a few words, from the options of a command; and the answers to other questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.check import auto_plan
from harness.check.deepspeed_release import parse_target
from harness.check.machine_findings import check_for_plan, find_plan_device
from harness.check.plan_report import report_plan
from harness.check.trainer_specs import read_trainer_spec
from harness.cli.console import exit_on_errors, exit_with
from harness.cli.machine_questions import MACHINE_QUESTIONS, answer_deadline
from harness.cli.plan_calibrate import require_calibration
from harness.cli.plan_option_checks import check_options
from harness.cli.plan_output import choose_next_command, exit_with_answer, print_report, write_files
from harness.cli.plan_questions import PlanOptions, answer_question
from harness.cli.plan_simulate import SIMULATE
from harness.errors import ExitCode
from harness.hostinfo import machine
from harness.plan.plan_usage import check_stage_and_price, parse_count_option, usage_error
from harness.plan.planner import make_plan
from harness.plan.search.pinned_keys import key_of_override
from harness.plan.search.price_list import split_price_options
from harness.plan.time.calibration_file import load_calibrations


def print_plan(values: dict[str, Any]) -> None:
    """Print the answer to the question of a command line, by the names of its parameters, and end with its exit code.
    Raises UserError.
    """
    format, long, prices, trainer = (values.pop(name) for name in ("format", "long", "prices", "trainer"))
    price, kind_prices = split_price_options(prices)
    check_stage_and_price(values["zero_stage"], price)
    given = PlanOptions(**{**values, "price": price, "kind_prices": kind_prices, "rank": values["rank"] or 0})
    if trainer is not None and (given.search or (given.spec is None and given.zero_stage is None)):
        raise usage_error("`--as` plans one run, and a search is of `harness launch`", "leave `--as` or `--search` out")
    check_options(given)
    if answer := answer_question(given, (*MACHINE_QUESTIONS, SIMULATE)):
        exit_with_answer(answer, format, given.write)
    raw, request, spec = None, None, given.spec
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
    searched, calibrations = None, load_calibrations(given.calibration)
    if given.search or (request is not None and request.stage is None):
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
    )
    require_calibration(planned, calibrations)
    report = report_plan(planned, searched, checked, request, choose_next_command(planned, searched, given, spec))
    print_report(report, checked, format, long=long, deadline=answer_deadline(planned, given))
    write_files(report, given.write, given.plot)
    exit_with(ExitCode.FINDINGS if given.here and searched is None and planned.fit.verdict is False else report.code)
