# SPDX-License-Identifier: Apache-2.0
"""The list of commands. A call imports only the command that it names, so that every command starts fast."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, NoReturn

import typer

from harness.cli.error_handler import exit_broken_pipe, report_crash, report_full_disk, with_broken_pipe
from harness.errors import ExitCode, UserError

COMMANDS: dict[str, tuple[str, str]] = {
    "validate-config": ("validate_config", "Check run specs and DeepSpeed JSONs"),
    "plan": ("plan", "Estimate memory and step time; list alternatives"),
    "render": ("render", "Print the DeepSpeed JSON of a run spec"),
    "adopt": ("adopt", "Convert a DeepSpeed, accelerate, axolotl or LLaMA-Factory config"),
    "data": ("data", "Preview the tokenized training data"),
    "preflight": ("preflight", "Check every host before a launch"),
    "rehearse": ("rehearse", "Run all phases of a run in small, before a long one"),
    "tune": ("tune", "Time the planner's best settings; write the fastest as a spec"),
    "launch": ("launch", "Train a run spec under the deepspeed launcher"),
    "runs": ("runs", "List runs with their state, step and speed"),
    "report": ("report", "Write an HTML report of a run, or a comparison of several"),
    "export": ("export", "Export a checkpoint as a Hugging Face folder"),
    "checkpoint": ("checkpoint", "List, verify, show, compare, remove checkpoints"),
    "explain": ("explain", "Explain a finding, or the log of a failed job"),
    "schema": ("schema", "Print the JSON Schema of run specs, for editors"),
    "upgrade-check": ("upgrade_check", "Show what changes for a file under a newer DeepSpeed"),
    "doctor": ("doctor", "Check this machine: versions, compilers, GPUs, memory"),
}
"""Command -> the module below `harness.cli` whose function of the same name it is, and a few words for the list."""


def main() -> NoReturn:
    """The whole program. A fault of ours ends with a log to paste and exit code 3, never with a bare traceback."""
    try:
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


def build_app(arguments: list[str]) -> typer.Typer:
    """The typer application with the command that `arguments` name, or with all of them where they name none."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(root)
    command = next((a for a in arguments if not a.startswith("-")), None)
    names = [] if arguments == ["--version"] else [command] if command in COMMANDS else COMMANDS
    for name in names:
        function, summary = COMMANDS[name]
        module = importlib.import_module(f"harness.cli.{function}")
        no_args_is_help = getattr(module, "NO_ARGS_IS_HELP", False)
        app.command(name, short_help=summary, no_args_is_help=no_args_is_help)(
            with_broken_pipe(getattr(module, function))
        )
    return app


def _print_version(is_given: bool) -> None:
    if is_given:
        import platform

        from harness import __version__
        from harness.hostinfo.installed_deepspeed import installed_version

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
