# SPDX-License-Identifier: Apache-2.0
"""Options of `harness plan` that mean nothing together: finding MM007."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from harness.cli.plan_questions import PlanOptions
from harness.plan.cost_range import parse_deadline
from harness.plan.plan_usage import usage_error


def _questions(options: PlanOptions) -> Mapping[str, bool]:
    """The questions that find a setting, each with whether it is asked."""
    return {
        "--cheapest": options.cheapest,
        "--longest": options.longest,
        "--largest-model": options.largest_model,
        "--simulate": options.simulate,
    }


def check_options(options: PlanOptions) -> None:
    """Raises UserError for options that mean nothing together."""
    name = next((option for option, is_asked in _questions(options).items() if is_asked), "")
    for option, value in (("--price KIND=X", options.kind_prices), ("--price-file", options.price_file)):
        if value and not options.cheapest:
            raise usage_error(f"`{option}` compares kinds of GPU, which only `--cheapest` does", "add `--cheapest`")
    if options.cheapest and options.price is not None:
        raise usage_error("`--cheapest` compares kinds of GPU, and `--price` names none", "write `--price KIND=X`")
    if options.params is not None:
        _check_bare_count(options)
    if options.deadline is not None:
        parse_deadline(options.deadline)
        if name not in ("", "--cheapest"):
            raise usage_error(f"`--deadline` has no effect with `{name}`", "leave `--deadline` out")
        if options.tokens is None and not options.cheapest:
            raise usage_error("`--deadline` needs the tokens of the run", "add `--tokens 2e9`, as many as it trains")
    _check_simulation(options)
    _check_calibration(options)
    if options.spec is not None and not options.cheapest:
        _check_beside_spec(options)
    _check_files(options)


def _check_simulation(options: PlanOptions) -> None:
    given = {
        "--rank": options.rank != 0,
        "--layers": options.layers is not None,
        "--races": options.races,
        "--trace": options.trace is not None,
    }
    for option, is_given in given.items():
        if is_given and not options.simulate:
            raise usage_error(f"`{option}` needs `--simulate`", "add `--simulate`")


def _check_calibration(options: PlanOptions) -> None:
    """A calibration is of one machine; questions compare machines, or have no step. `--calibrate` plans nothing."""
    others = {"--params": options.params is not None, "--min-gpus": options.min_gpus, **_questions(options)}
    name = next((option for option, is_asked in others.items() if is_asked), "")
    if options.calibration is not None and name:
        message = f"`--calibration` is for the plan of one run, and `{name}` answers another question"
        raise usage_error(message, "leave `--calibration` out")
    for option, value in (("--write", options.write), ("--plot", options.plot)):
        if options.calibrate and value is not None:
            raise usage_error(
                f"`{option}` has no effect with `--calibrate`, which plans nothing", f"leave `{option}` out"
            )


def _check_bare_count(options: PlanOptions) -> None:
    """A bare count has model states and nothing else."""
    if options.spec is not None or options.model is not None:
        other = "a spec" if options.spec is not None else "`--model`"
        raise usage_error(f"{other} and `--params` are both given", "leave `--params` out, which is for a bare count")
    for option, value in (
        ("--tokens", options.tokens),
        ("--price", options.price),
        ("--deadline", options.deadline),
        ("--write", options.write),
        ("--host-memory", options.host_memory),
        ("--nvme", options.nvme),
    ):
        if value is not None:
            message = f"`{option}` has no effect for a bare count, which has model states and no step"
            raise usage_error(message, "give `--model` instead of `--params`")


def _check_beside_spec(options: PlanOptions) -> None:
    """A spec names its own cluster and its own sizes."""
    for option, value, key in (
        ("--gpus", options.gpus, "cluster.gpus_per_node"),
        ("--gpu", options.gpu, "cluster.gpu"),
        ("--gpus-per-node", options.gpus_per_node, "cluster.gpus_per_node"),
        ("--host-memory", options.host_memory, "cluster.host_memory"),
        ("--nvme", options.nvme, "cluster.nvme"),
        ("--zero-stage", options.zero_stage, "zero.stage"),
    ):
        if value is not None:
            quoted = shlex.quote(f"{key}={value}")
            raise usage_error(f"a spec and `{option}` are both given", f"write `--set {quoted}` with a spec")


def _check_files(options: PlanOptions) -> None:
    """Files that could not be written once everything is planned."""
    for option, file in (("--write", options.write), ("--plot", options.plot), ("--trace", options.trace)):
        if file is None:
            continue
        if not Path(file).parent.is_dir():
            raise usage_error(f"`{option} {file}`: there is no such folder", "name a file in a folder that exists")
        if Path(file).is_dir():
            raise usage_error(f"`{option} {file}` is a folder", "name a file in it")
    is_searched = options.search or (options.spec is None and options.zero_stage is None)
    if options.write is not None and not is_searched and not any(_questions(options).values()):
        raise usage_error("there is nothing to write: this plan searches no settings", "add `--search`")
