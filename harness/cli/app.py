"""Which commands there are. Only the one that is asked for is imported, so that `validate-config` starts fast."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from harness.errors import ExitCode, UserError

if TYPE_CHECKING:
    import typer

COMMANDS: dict[str, tuple[str, str]] = {
    "validate-config": ("validate_config", "Check run specs and DeepSpeed JSONs"),
    "plan": ("plan", "Memory, step time, and what else would fit"),
    "render": ("render", "The DeepSpeed JSON of a run spec"),
    "adopt": ("adopt", "A run spec of what you have already"),
    "data": ("data", "What the model will see of its data"),
    "preflight": ("preflight", "Ask every host what it has, before a launch"),
    "rehearse": ("rehearse", "The same run made small, through all its phases, before a long one"),
    "tune": ("tune", "Short runs of the planner's best settings; the fastest as a spec"),
    "launch": ("launch", "Train a run spec under the deepspeed launcher"),
    "runs": ("runs", "Which runs there are, and how each is doing"),
    "report": ("report", "One HTML page about a run, or about several beside each other"),
    "export": ("export", "A Hugging Face folder from a checkpoint"),
    "checkpoint": ("checkpoint", "List, verify, show, compare, remove checkpoints"),
    "explain": ("explain", "What a finding means"),
    "schema": ("schema", "The JSON Schema of run specs, for editors"),
    "upgrade-check": ("upgrade_check", "What another DeepSpeed release makes of a file"),
    "doctor": ("doctor", "What this machine has and makes possible"),
}
"""Command -> the module below `harness.cli` whose function of the same name it is, and a few words for the list."""


def main() -> NoReturn:
    """The whole program. A fault of ours ends with a log to paste and exit code 3, never with a bare traceback."""
    try:
        _validate_without_typer(sys.argv[1:])
        app = build_app(sys.argv[1:])
        gc.enable()
        app()
    except UserError as refused:
        from harness.cli.console import print_findings

        print_findings(refused.findings, None)
        sys.exit(refused.code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would complain once more at its end
        sys.exit(ExitCode.BROKEN_PIPE)
    except Exception as error:
        sys.exit(_report_full_disk(error) or _report_crash())
    sys.exit(ExitCode.OK)


def _validate_without_typer(arguments: list[str]) -> None:
    """Validate without typer, where the command line is a plain one; comes back where it is not."""
    if arguments[:1] != ["validate-config"]:
        return
    from harness.cli.quick import read
    from harness.cli.validation import validate

    options = read(arguments[1:])
    if options is not None:
        validate(options)


def build_app(arguments: list[str]) -> typer.Typer:
    """The typer application with the command that `arguments` name, or with all of them where they name none."""
    import typer

    from harness.cli.root import root

    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(root)
    asked = next((a for a in arguments if not a.startswith("-")), None)
    for name in [asked] if asked in COMMANDS else COMMANDS:
        function, words = COMMANDS[name]
        module = importlib.import_module(f"harness.cli.{function}")
        no_args_is_help = getattr(module, "NO_ARGS_IS_HELP", False)
        app.command(name, short_help=words, no_args_is_help=no_args_is_help)(getattr(module, function))
    return app


def _report_full_disk(error: Exception) -> ExitCode | None:
    """A full disk under stdout is not our fault."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        print(f"error: the output could not be written: {error.strerror}", file=sys.stderr)
        return ExitCode.USAGE
    return None


def _report_crash() -> ExitCode:
    import tempfile
    import traceback

    text = f"harness {' '.join(sys.argv[1:])}\nPython {sys.version}\n\n{traceback.format_exc()}"
    with tempfile.NamedTemporaryFile(
        "w", prefix="harness-crash-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as log:
        log.write(text)
    last = traceback.format_exc().strip().splitlines()[-1]
    print(f"error: the harness itself failed: {last}", file=sys.stderr)
    print(f"help: this is our fault, please report it with the log {log.name}", file=sys.stderr)
    return ExitCode.BUG
