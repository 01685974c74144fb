# SPDX-License-Identifier: Apache-2.0
"""The refusal of options that a question of `harness plan` and its like does not read: finding MM007."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from harness.cli.plan_modes import DEGREE_OPTIONS, NEEDS, OF_DEGREES, OF_SPEC, OF_WORDS, QUESTIONS, Mode, find_mode
from harness.errors import UserError
from harness.plan.plan_usage import usage_error
from harness.plan.search.plan_request import OPTION_KEYS, PRECISIONS


def refuse_unread_options(values: Mapping[str, Any], defaults: Mapping[str, Any], names: Mapping[str, str]) -> Mode:
    """The question of a command line, whose every option its answer depends on. `values` and `defaults` by the name of
    the parameter; `names`: as the user writes them. Raises UserError.
    """
    given = frozenset(name for name, value in values.items() if value != defaults[name] and value != [])
    mode = find_mode(given)
    unread = sorted((name for name in values if name in given - mode.reads), key=lambda name: name not in QUESTIONS)
    if unread:
        raise _refusal(mode, unread[0], names.get(unread[0], unread[0]), values[unread[0]])
    return mode


def _refusal(mode: Mode, name: str, option: str, value: Any) -> UserError:
    asked = f"`{mode.name}`" if mode.name.startswith("-") else mode.name
    given, leave_out = f"`{option}`" if option.startswith("-") else "a spec", f"leave `{option}` out"
    need, key = NEEDS.get(name, ""), OPTION_KEYS.get(name, "")
    is_count, of_spec = mode.name == "--params", mode is OF_SPEC
    rules = (
        (mode is OF_DEGREES, f"{given} does not go with degrees of parallelism", "leave it out"),
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
        (name in QUESTIONS, f"{asked} and {given} cannot be combined", "ask one of them"),
        (
            of_spec and bool(key),
            f"a spec and {given} are both given",
            f"write `--set {shlex.quote(f'{key}={value}')}` with a spec",
        ),
        (
            of_spec and name == "precision",
            f"a spec and {given} are both given",
            f"write `--set {shlex.quote(PRECISIONS.get(str(value), PRECISIONS['bf16']))}` with a spec",
        ),
        (
            name in DEGREE_OPTIONS and name not in OF_WORDS.reads,
            f"{given} goes with degrees of parallelism",
            "ask `harness degrees`, or leave it out",
        ),
        (bool(need) and need != mode.name, f"{given} needs {need}", f"add {need}, or leave it out"),
        (name == "calibration", f"{given} is for the plan of one run, and {asked} answers another question", leave_out),
        (
            is_count,
            f"{given} has no effect for a bare count, which has model states and no step",
            "give `--model` instead of `--params`",
        ),
        (True, f"{given} has no effect with {asked}", leave_out),
    )
    return next(usage_error(message, fix) for is_so, message, fix in rules if is_so)
