# SPDX-License-Identifier: Apache-2.0
"""The program. A call imports only the command that it names, so that every command starts fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, NoReturn

import typer

from harness.cli.command_list import ALIASES, COMMAND_GROUPS, COMMANDS, Command
from harness.cli.error_handler import exit_broken_pipe, report_crash, report_full_disk, with_broken_pipe
from harness.cli.help_groups import CommandGroups, GroupedCommand
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.printed_text import guard_streams
from harness.views.style import style_for

_COMPLETION_VARIABLE = "_HARNESS_COMPLETE"
"""Set by the completion script of the shell, as typer names it."""


def main() -> NoReturn:
    """The whole program. A fault of ours ends with a log to paste and exit code 3, never with a bare traceback."""
    with guard_streams(lambda stream: style_for(stream).colour):
        _run()


def _run() -> NoReturn:
    try:
        refuse_names_like_options(sys.argv[1:])
        build_app(sys.argv[1:])()
    except UserError as refused:
        from harness.cli.console import print_findings

        print_findings(refused.findings, None)
        sys.exit(refused.code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        exit_broken_pipe()
    except Exception as error:
        sys.exit(report_full_disk(error) or report_crash())
    sys.exit(ExitCode.OK)


def refuse_names_like_options(arguments: list[str]) -> None:
    """Refuse an option that is the name of a file here: a pattern such as `*.yaml`, or a pre-commit hook, gave it, and
    who made the file would choose our options. Raises UserError.
    """
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    name = next((word for word in options if len(word) > 1 and word[0] == "-" and os.path.lexists(word)), None)
    if name is not None:
        message = f"`{name}` is a file here, and would be read as an option"
        fix = Fix(f"write `./{name}`, or give the names of files after `--`")
        raise UserError([Finding("SP011", "error", message, fix=fix)], ExitCode.USAGE)


def build_app(arguments: list[str]) -> typer.Typer:
    """The typer application with the command that `arguments` name; or, where they name none, with all of them by name
    and summary alone.
    """
    if arguments[:1] == ["--show-completion"] and len(arguments) == 2:  # typer would show that of the current shell
        os.environ[_COMPLETION_VARIABLE] = f"source_{arguments[1]}"
    words = _completed_words() if _COMPLETION_VARIABLE in os.environ else arguments
    name = next((word for word in words if not word.startswith("-")), None)
    is_command = name in COMMANDS or name in ALIASES
    app = typer.Typer(
        cls=CommandGroups,
        add_completion=not is_command or _COMPLETION_VARIABLE in os.environ,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit it
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    if name is not None and is_command:
        _add_command(app, name, COMMANDS[ALIASES.get(name, name)])
    elif arguments != ["--version"]:
        _add_names(app)
    return app


def _add_command(app: typer.Typer, name: str, command: Command) -> None:
    module = importlib.import_module(f"harness.cli.{command.function}")
    no_args_is_help = getattr(module, "NO_ARGS_IS_HELP", False)
    function = with_broken_pipe(getattr(module, command.function))
    app.command(name, cls=GroupedCommand, short_help=command.summary, no_args_is_help=no_args_is_help)(function)


def _add_names(app: typer.Typer) -> None:
    """For the list, the completion of names, and did-you-mean: nothing is imported."""
    for group, commands in COMMAND_GROUPS.items():
        for name, command in commands.items():
            app.command(name, short_help=command.summary, rich_help_panel=group)(_placeholder)
    for alias in ALIASES:  # which the help leaves out
        app.command(alias)(_placeholder)


def _placeholder() -> None:
    """A command that is listed, never called: `build_app` imports the one that is named."""
    raise NotImplementedError


def _completed_words() -> list[str]:
    """The words that the shell completes; bash has them in one variable, zsh and fish in another."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()[1:]


def _print_version(is_given: bool) -> None:
    if is_given:
        import platform

        from harness import __version__
        from harness.facts.deepspeed_version import installed_version

        deepspeed = installed_version()
        print(f"harness {__version__}")
        print(f"Python {platform.python_version()}, " + (f"DeepSpeed {deepspeed}" if deepspeed else "no DeepSpeed"))
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of harness, Python and DeepSpeed.",
        ),
    ] = False,
) -> None:
    """Validate, plan, render, launch and report DeepSpeed training runs from one YAML run spec."""
