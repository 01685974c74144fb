# SPDX-License-Identifier: Apache-2.0
"""Values of options of `harness plan` that mean nothing together: finding MM007."""

from __future__ import annotations

from pathlib import Path

from harness.cli.plan_questions import PlanOptions
from harness.errors import UserError
from harness.plan.plan_usage import parse_count_option, usage_error
from harness.plan.time.cost_range import parse_deadline


def check_options(options: PlanOptions) -> None:
    """Raises UserError for options whose values mean nothing together."""
    if options.kind_prices and not options.cheapest:
        raise usage_error("`--price KIND=X` compares kinds of GPU, which only `--cheapest` does", "add `--cheapest`")
    if options.cheapest and options.price is not None:
        raise usage_error("`--cheapest` compares kinds of GPU, and `--price` names none", "write `--price KIND=X`")
    if options.price is not None and options.tokens is None and not options.min_gpus:
        raise needs_tokens("--price")
    if options.epochs is not None and not 0 < options.epochs <= 1e6:
        raise usage_error(f"`--epochs {options.epochs:g}` is no number of epochs", "give one above 0, at most 1e6")
    if options.epochs is not None and not options.tokens:
        raise needs_tokens("--epochs")
    if options.deadline is not None:
        parse_deadline(options.deadline)
        if options.tokens is None and not options.cheapest:
            raise needs_tokens("--deadline")
    if options.measured is not None:
        parse_count_option("--measured", options.measured)
    _check_files(options)


def needs_tokens(option: str) -> UserError:
    """The refusal of an option that is about the cost of a whole run."""
    return usage_error(f"`{option}` needs the tokens of the run", "add `--tokens 2e9`, as many as it trains")


def _check_files(options: PlanOptions) -> None:
    """Files that could not be written once everything is planned."""
    for option, file in (
        ("--write", options.write),
        ("--plot", options.plot),
        ("--html", options.html),
        ("--trace", options.trace),
    ):
        if file is None:
            continue
        if not Path(file).parent.is_dir():
            raise usage_error(f"`{option} {file}`: there is no such folder", "name a file in a folder that exists")
        if Path(file).is_dir():
            raise usage_error(f"`{option} {file}` is a folder", "name a file in it")
    is_searched = options.search or options.spec is None
    is_searched |= options.cheapest or options.longest or options.largest_model
    if options.write is not None and not is_searched:
        raise usage_error("there is nothing to write: this plan searches no settings", "add `--search`")
