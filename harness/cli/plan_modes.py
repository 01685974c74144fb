# SPDX-License-Identifier: Apache-2.0
"""The questions of `harness plan`, the options that each one reads, and the refusal of all others: finding MM007."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.errors import UserError
from harness.plan.plan_usage import usage_error
from harness.plan.search.plan_request import OPTION_KEYS

DEGREES = "degrees of parallelism"
_DEGREE_STARTERS = ("tensor", "pipeline", "context", "expert", "virtual_stages", "schedule", "timeline")
_DEGREE_OPTIONS = {*_DEGREE_STARTERS, "micro_batch", "precision", "checkpointing", "states", "sequence_parallel"}
_DEGREE_OPTIONS |= {"gradients"}
_RUN = {"model", "gpus", "gpu", "zero_stage", "max_length", "batch_tokens"}
_MACHINE = {"gpus_per_node", "host_memory", "nvme"}
_SPEC = {"spec", "overrides", "hostfile", "world_size", "here"}
_PLAN = {
    "overrides",
    "network",
    "tokens",
    "prices",
    "deadline",
    "search",
    "write",
    "plot",
    "calibration",
    "long",
    "trainer",
}
_CHEAPEST = {"overrides", "gpus", "gpu", "host_memory", "tokens", "prices", "price_file", "deadline", "write"}
_SIMULATION = {"rank", "layers", "races", "trace"}


class Mode(NamedTuple):
    """A question, as a sentence names it, and the names of the options that its answer depends on."""

    name: str
    reads: frozenset[str]


def _mode(name: str, *options: str | set[str]) -> Mode:
    names = (option if isinstance(option, set) else {option} for option in options)
    return Mode(name, frozenset().union({"format"}, *names))


_BY_OPTION = {
    "table": _mode("--table", "table", "precision", "states", "params", "model", "gpus"),
    "non_state_peak": _mode(
        "--non-state-peak", "non_state_peak", "precision", "states", "params", "model", "gpus", "gpu", "gpus_per_node"
    ),
    "params": _mode("--params", "params", "gpus", "gpu", "zero_stage", "network", "gradients"),
    "calibrate": _mode("--calibrate", "calibrate", "calibration"),
    "min_gpus": _mode("--min-gpus", "min_gpus", _RUN - {"gpus"}, _MACHINE, "overrides"),
    "largest_model": _mode("--largest-model", "largest_model", _RUN - {"model"}, _MACHINE, "overrides", "write"),
}
_BY_OPTION_AND_SOURCE = {  # about a spec, and without one
    "cheapest": (
        _mode("--cheapest", "cheapest", _CHEAPEST, "spec"),
        _mode("--cheapest", "cheapest", _CHEAPEST, _RUN),
    ),
    "longest": (
        _mode("--longest", "longest", _SPEC, "write"),
        _mode("--longest", "longest", _MACHINE, "model", "gpus", "gpu", "overrides", "write"),
    ),
    "simulate": (
        _mode("--simulate", "simulate", _SPEC, _SIMULATION),
        _mode("--simulate", "simulate", _SPEC, _SIMULATION),
    ),
}
_QUESTIONS = (*_BY_OPTION, *_BY_OPTION_AND_SOURCE)
_OF_DEGREES = _mode(DEGREES, _DEGREE_OPTIONS, _RUN, "gpus_per_node", "network", "tokens", "prices")
_OF_SPEC = _mode("a spec", _SPEC, _PLAN)
_OF_WORDS = _mode("a plan without a spec", _RUN, _MACHINE, _PLAN)
_NEEDS = {
    **dict.fromkeys(_SIMULATION, "`--simulate`"),
    "price_file": "`--cheapest`",
    **dict.fromkeys(("hostfile", "world_size", "here"), "a spec"),
}
_RECIPE = {"precision", "states"}


def find_mode(given: frozenset[str]) -> Mode:
    """The question that options of these names ask."""
    if given & set(_DEGREE_STARTERS):
        return _OF_DEGREES
    if "params" in given and given & _RECIPE and "non_state_peak" not in given:
        return _without_model(_BY_OPTION["table"])
    for name, mode in _BY_OPTION.items():
        if name in given:
            return _without_model(mode) if "params" in given else mode
    for name, (about_spec, without) in _BY_OPTION_AND_SOURCE.items():
        if name in given:
            return about_spec if "spec" in given else without
    return _OF_SPEC if "spec" in given else _OF_WORDS


def _without_model(mode: Mode) -> Mode:
    """The question about a bare count of parameters."""
    return mode._replace(reads=mode.reads - {"model"})


def refuse_unread_options(values: Mapping[str, Any], defaults: Mapping[str, Any], names: Mapping[str, str]) -> Mode:
    """The question of a command line, whose every option its answer depends on. `values` and `defaults` by the name of
    the parameter; `names`: as the user writes them. Raises UserError.
    """
    given = frozenset(name for name, value in values.items() if value != defaults[name] and value != [])
    mode = find_mode(given)
    unread = sorted((name for name in values if name in given - mode.reads), key=lambda name: name not in _QUESTIONS)
    if unread:
        raise _refusal(mode, unread[0], names.get(unread[0], unread[0]), values[unread[0]])
    return mode


def _refusal(mode: Mode, name: str, option: str, value: Any) -> UserError:
    asked = f"`{mode.name}`" if mode.name.startswith("-") else mode.name
    given, leave_out = f"`{option}`" if option.startswith("-") else "a spec", f"leave `{option}` out"
    need, key = _NEEDS.get(name, ""), OPTION_KEYS.get(name, "")
    is_count, of_spec = mode.name == "--params", mode is _OF_SPEC
    rules = (
        (mode is _OF_DEGREES, f"{given} does not go with degrees of parallelism", "leave it out"),
        (
            (name == "model" and "params" in mode.reads) or (is_count and name == "spec"),
            f"{given} and `--params` are both given",
            "leave `--params` out, which is for a bare count",
        ),
        (
            mode.name == "--largest-model" and name == "model",
            "`--largest-model` searches for a model, and `--model` names one",
            leave_out,
        ),
        (name == "spec", f"a spec and {asked} are both given", "leave the spec out"),
        (of_spec and name == "model", f"a spec and {given} are both given", "leave the spec out"),
        (name in _QUESTIONS, f"{asked} and {given} cannot be combined", "ask one of them"),
        (
            of_spec and bool(key),
            f"a spec and {given} are both given",
            f"write `--set {shlex.quote(f'{key}={value}')}` with a spec",
        ),
        (
            name in _DEGREE_OPTIONS,
            f"{given} goes with degrees of parallelism",
            "ask `harness degrees`, or leave it out",
        ),
        (bool(need) and need != mode.name, f"{given} needs {need}", f"add {need}, or leave it out"),
        (
            name == "calibration",
            f"{given} is for the plan of one run, and {asked} answers another question",
            leave_out,
        ),
        (
            is_count,
            f"{given} has no effect for a bare count, which has model states and no step",
            "give `--model` instead of `--params`",
        ),
        (True, f"{given} has no effect with {asked}", leave_out),
    )
    return next(usage_error(message, fix) for is_so, message, fix in rules if is_so)
