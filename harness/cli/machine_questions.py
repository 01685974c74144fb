# SPDX-License-Identifier: Apache-2.0
"""Questions of `harness plan` about machines and lengths: `--cheapest`, `--longest`, `--largest-model`; deadlines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, NamedTuple

from harness.check import auto_plan
from harness.check.cheapest_machine import RunToPlace, fills_hosts, find_cheapest
from harness.check.largest_model import BASE_MODEL, find_largest_model
from harness.check.longest_sequence import find_longest_sequence
from harness.check.machine_findings import check_for_plan, find_plan_device
from harness.cli.console import exit_on_errors
from harness.cli.plan_questions import Answer, PlanOptions, Question
from harness.errors import ExitCode, UserError
from harness.facts.devices import usual_gpus_per_host
from harness.facts.gpu_prices import GpuPrice
from harness.plan.plan_usage import parse_count_option, usage_error
from harness.plan.planner import Plan
from harness.plan.search.pinned_keys import key_of_override
from harness.plan.search.plan_request import validate_count
from harness.plan.search.price_list import read_price_list
from harness.plan.time.cost_range import parse_deadline
from harness.run.resolved_run import ResolvedRun
from harness.units import pluralize
from harness.views import plan_longest as longest_view
from harness.views.plan_cheapest import cheapest_as_dict, deadline_as_dict, render_cheapest, render_deadline
from harness.views.style import Style, style_for

_DEFAULT_TOKENS = 1e9
_MAX_GPUS = 1_000_000
_ANY_GPU = "H100-80GB"
"""A kind for a request that is about all of them."""
_SHORT = 1024
"""Tokens of a sequence that every model takes."""
_NO_ANSWER = "Nothing was planned"


class _Screen(NamedTuple):
    style: Style
    width: int


def _screen() -> _Screen:
    return _Screen(style_for(sys.stdout), shutil.get_terminal_size((110, 24)).columns)


def _answer_cheapest(options: PlanOptions) -> Answer:
    tokens = _DEFAULT_TOKENS if options.tokens is None else parse_count_option("--tokens", options.tokens)
    deadline = None if options.deadline is None else parse_deadline(options.deadline)
    prices = read_price_list(options.kind_prices, options.price_file, date.today())
    prices = prices if options.gpu is None else prices.only(options.gpu)
    if options.spec is None and options.model is None:
        example = "harness size --model llama-3.1-8b --cheapest --tokens 1e9"
        raise usage_error("`--cheapest` needs a spec or `--model`", f"try `{example}`")
    if options.spec is None:
        placed = RunToPlace.from_request(replace(options, gpu=_ANY_GPU).to_request(needs_gpus=False))
    else:
        placed = RunToPlace.from_spec(_run_of_spec(options, options.spec), options.spec, options.overrides or ())
    if options.gpus is not None:
        _check_whole_hosts(options.gpus, prices.prices)
        _check_rows(options.gpus, placed)
    result = find_cheapest(placed, prices, tokens, deadline, options.host_memory, options.gpus)
    style, width = _screen()
    code = ExitCode.OK if result.rows else ExitCode.FINDINGS
    spec = result.rows[0].spec if result.rows else None
    return Answer(render_cheapest(result, style, width), cheapest_as_dict(result), code, spec)


def _check_whole_hosts(gpus: int, prices: Sequence[GpuPrice]) -> None:
    findings = validate_count("--gpus", gpus, _MAX_GPUS)
    if findings:
        raise UserError(findings, ExitCode.USAGE)
    if not any(fills_hosts(gpus, price.kind) for price in prices):
        per_host = min(usual_gpus_per_host(price.kind) for price in prices)
        message = f"{gpus} GPUs do not fill hosts of {per_host}, the unit in which they are rented"
        raise usage_error(message, f"give a multiple of {per_host}, or fewer than {per_host}")


def _check_rows(gpus: int, placed: RunToPlace) -> None:
    if placed.allows(gpus):
        return
    rows = pluralize(placed.sequences, "sequence")
    batch = "`--batch-tokens`" if placed.request is not None else "`train.global_batch_size`"
    fix = f"give fewer `--gpus`, or a larger batch with {batch}"
    raise usage_error(f"a step has {rows}, which do not divide over {gpus:,} GPUs", fix)


def _answer_longest(options: PlanOptions) -> Answer:
    if options.spec is not None:
        run, file = _run_of_spec(options, options.spec), options.spec
        raw: Mapping[str, Any] = run.spec.model_dump(mode="json", exclude_unset=True)
    else:
        request = options.to_request()
        one_each = replace(request, max_length=_SHORT, tokens_per_step=_SHORT * request.gpus)
        raw, checked = auto_plan.check_request(one_each)
        run, file = exit_on_errors(checked, _NO_ANSWER), auto_plan.name_of(request)
    device = find_plan_device(here=options.here)
    pinned = tuple(map(key_of_override, options.overrides or ()))
    if ("data", "max_length") in pinned:
        raise usage_error("`data.max_length` has no effect with `--longest`, which searches for it", "leave it out")
    result = find_longest_sequence(run, raw, file, options.hostfile, device, pinned)
    body, style, width = longest_view.longest_as_dict(result), *_screen()
    if result is None:
        name = run.spec.model.name_or_path or run.name
        return Answer(longest_view.render_too_long(name), body, ExitCode.FINDINGS)
    return Answer(longest_view.render_longest(result, style, width), body, ExitCode.OK, result.spec)


def _answer_largest_model(options: PlanOptions) -> Answer:
    if options.gpu is None or options.gpus is None:
        raise usage_error("`--largest-model` needs a cluster", "give `--gpus` and `--gpu`, and `--host-memory`")
    result = find_largest_model(replace(options, model=BASE_MODEL).to_request())
    body, style, width = longest_view.largest_as_dict(result), *_screen()
    code = ExitCode.OK if result.fitting else ExitCode.FINDINGS
    return Answer(longest_view.render_largest(result, style, width), body, code, body["spec"])


def _run_of_spec(options: PlanOptions, spec: str) -> ResolvedRun:
    checked = check_for_plan(spec, options.overrides, options.hostfile, options.world_size, here=options.here)
    return exit_on_errors(checked, _NO_ANSWER)


def answer_deadline(planned: Plan, options: PlanOptions) -> Answer | None:
    """Does the planned run meet the deadline? Hours and money as ranges; None without `--deadline`."""
    if options.deadline is None:
        return None
    deadline = parse_deadline(options.deadline)
    return Answer(render_deadline(planned.cost, deadline), {"deadline": deadline_as_dict(planned.cost, deadline)})


MACHINE_QUESTIONS: tuple[Question, ...] = (
    Question(lambda options: options.cheapest, _answer_cheapest),
    Question(lambda options: options.longest, _answer_longest),
    Question(lambda options: options.largest_model, _answer_largest_model),
)
