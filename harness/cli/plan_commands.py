# SPDX-License-Identifier: Apache-2.0
"""`harness plan`, `size`, `simulate`, `calibrate` and `degrees`: one planner, to each command the options of its
questions.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from harness.cli.plan_answer import print_plan
from harness.cli.plan_degrees import print_degrees
from harness.cli.plan_modes import DEGREES, Mode
from harness.cli.plan_parameters import DEFAULTS, OF_DEGREES, OPTIONS
from harness.cli.plan_refusal import refuse_unread_options
from harness.cli.plan_states import STATES_MODES, parse_network, print_bare_count, print_states
from harness.errors import ExitCode, UserError
from harness.facts.model_lookup import find_configuration
from harness.hostinfo.hub_config import FetchError, can_fetch, fetch_config
from harness.plan.degrees.degrees_request import validate_choice
from harness.plan.plan_usage import usage_error
from harness.plan.search.plan_request import ADAPTERS, PRECISIONS, QUANTIZED

_COMMANDS = {"--simulate": "simulate SPEC", "--calibrate": "calibrate RUN", DEGREES: "degrees"}
"""The commands of questions that `harness plan` answers for those who still ask it; `size` of the others."""


def make_command(
    name: str,
    text: str,
    shown: str,
    *,
    hidden: bool = False,
    fixed: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Callable[..., None]:
    """The function of a command, for typer.

    Args:
        name: that of the command, `plan`.
        text: its help.
        shown: the parameters that it has, of those of all questions, with a space between.
        hidden: the command takes all others, too, and its help leaves them out.
        fixed: values that it has by itself.
        arguments: the type, for typer, of a parameter that is an argument here and no option elsewhere.
    """
    fixed, arguments = fixed or {}, arguments or {}
    names = [*arguments, *(each for each in shown.split() if each not in arguments)]
    parameters = [_parameter(each, arguments.get(each)) for each in names]
    if hidden:
        parameters += [_hide(each) for name, each in OPTIONS.items() if name not in names]

    def command(**values: Any) -> None:
        merged = {**DEFAULTS, **values}
        _run(name, merged | {key: value for key, value in fixed.items() if merged[key] == DEFAULTS[key]})

    command.__name__, command.__doc__ = name, text
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(name: str, argument: Any) -> inspect.Parameter:
    return OPTIONS[name] if argument is None else OPTIONS[name].replace(annotation=argument, default=inspect._empty)


def _hide(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, info = get_args(parameter.annotation)
    info = copy.copy(info)
    info.hidden = True
    return parameter.replace(annotation=Annotated[kind, info])


def _run(command: str, values: dict[str, Any]) -> None:
    """Answer the question that these options ask. Raises UserError where one of them has no effect on the answer."""
    mode = refuse_unread_options(values, DEFAULTS, {each.name: _name_option(each) for each in OPTIONS.values()})
    if command == "plan":
        _advise(mode, values)
    fetch_configuration(values["model"], offline=values.pop("offline"))
    lora, qlora = values.pop("lora"), values.pop("qlora")
    words = [*(ADAPTERS if lora or qlora else ()), *(QUANTIZED if qlora else ())]
    own = {name: values[name] for name in OF_DEGREES}
    words += _read_precision(own["precision"]) if mode.name not in (DEGREES, "--params", *STATES_MODES) else []
    values["overrides"] = [*words, *(values["overrides"] or ())] or values["overrides"]
    if mode.name == DEGREES:
        print_degrees(own, values)
    elif mode.name in STATES_MODES:
        print_states(own, values)
    elif mode.name == "--params":
        print_bare_count(own, values)
    else:
        if (network := parse_network(own["network"])) is not None:
            values["overrides"] = [*(values["overrides"] or ()), f"cluster.network_bandwidth={network:.0f}"]
        print_plan({name: value for name, value in values.items() if name not in own})


def _read_precision(word: str | None) -> list[str]:
    """The keys of a run that `--precision` stands for. Raises UserError for a format that no run has."""
    if word == "fp8":
        message = "`harness launch` trains in no FP8, which GPUs before Ada do not have"
        raise usage_error(message, "ask `harness degrees`")
    if word is not None and (findings := validate_choice("--precision", word, tuple(PRECISIONS))):
        raise UserError(findings, ExitCode.USAGE)
    return [] if word is None else [PRECISIONS[word]]


def _advise(mode: Mode, values: Mapping[str, Any]) -> None:
    """A line on stderr for a question that has a command of its own."""
    successor = _COMMANDS.get(mode.name, None if values["spec"] is not None else "size")
    if successor is not None:
        print(f"`harness {successor}` answers this; `harness plan` does so until release 1.0.", file=sys.stderr)


def _name_option(parameter: inspect.Parameter) -> str:
    """The option as the user writes it."""
    written = (getattr(item, "default", None) for item in parameter.annotation.__metadata__)
    return next((text.partition("/")[0] for text in written if isinstance(text, str)), parameter.name)


def fetch_configuration(model: str | None, *, offline: bool) -> None:
    """Fetch `config.json` of an unknown model with its owner into the cache, and say so on standard error. Nothing is
    asked for a folder, a name of the cache or of the catalogue, and with `offline`.
    """
    is_here = model is not None and (Path(model).exists() or find_configuration(model) is not None)
    if offline or model is None or is_here or not can_fetch(model):
        return
    try:
        file = fetch_config(model)
    except FetchError as error:
        print(f"harness: `config.json` of `{model}` could not be fetched: {error}", file=sys.stderr)
    else:
        print(f"harness: fetched `config.json` of `{model}` and nothing else, to {file}", file=sys.stderr)
