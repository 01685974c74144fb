# SPDX-License-Identifier: Apache-2.0
"""The help of commands in plain text, with options and commands under the headings of their groups.

typer groups by `rich_help_panel` in its own rich help alone, which takes a tenth of a second longer to start.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from harness.cli.command_list import ALIASES
from harness.views.style import escape_unprintable

_LEAST_OPTIONS = 3
"""Fewer options than this get no heading of their own."""
_WIDEST_NAME = 30
"""Longer names have a line of their own, as in click's help."""

Rows = list[tuple[str, str]]
_USAGE_ERROR: Any = typer.BadParameter.__base__
"""click's UsageError, which typer does not export."""


class GroupedCommand(TyperCommand):
    """A command whose help has a heading for each `rich_help_panel`. Its arguments are as in a manual page, `FILE...`,
    without typer's braces and types, and its example is on one line, to be copied.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an error quotes them without control characters. An option that takes one value, or has
        an opposite, is an error where it is given twice: click would take the last. So is an empty value, which is most
        often a variable of the shell that is not set: as a path it would mean the current folder.
        """
        if not args:  # click prints the help as an error, which quotes nothing
            return super().parse_args(ctx, args)
        with _escaped_errors():
            if "--help" not in args and not ctx.resilient_parsing:
                values, _, given = self.make_parser(ctx).parse_args(args=list(args))
                _refuse_repeated(given, ctx)
                _refuse_empty(values, given, ctx)
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return [self.options_metavar or "", *map(name_argument, arguments)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer calls it
        """Write the description, then the example, which is not wrapped."""
        text, _, example = inspect.cleandoc(self.help or "").partition("\n\nExample: ")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
            if example:
                formatter.write_paragraph()
                formatter.write(f"{' ' * formatter.current_indent}Example: {example}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options without a group, then the groups."""
        arguments: Rows = []
        groups: dict[str, Rows] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            text = record[1].replace(r"\[", "[")  # typer 0.16 and 0.20 escape for rich, which does not print this
            if param.param_type_name == "argument":
                arguments.append((name_argument(param), text))
            else:
                groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append((record[0], text))
        small = [name for name, rows in groups.items() if name != "Options" and len(rows) < _LEAST_OPTIONS]
        for name in small:
            groups["Options"][-1:-1] = groups.pop(name)  # `--help` stays the last
        write_sections(formatter, {"Arguments": arguments})
        write_sections(formatter, groups)


class CommandGroups(TyperGroup):
    """The program, whose help lists its commands by group."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; an error quotes its name without control characters."""
        with _escaped_errors():
            return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the headings of their groups."""
        groups: dict[str, Rows] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and name not in ALIASES:
                heading = getattr(command, "rich_help_panel", None) or "Commands"
                groups.setdefault(heading, []).append((name, command.short_help or ""))
        write_sections(formatter, groups)


def _refuse_repeated(given: list[Any], ctx: Any) -> None:
    """Raise click's error for an option that is in the list of parsed parameters twice and can mean only one thing."""
    options = [param for param in given if param.param_type_name == "option"]
    for index, param in enumerate(options):
        takes_one = not (param.multiple or param.count or (param.is_flag and not param.secondary_opts))
        if takes_one and param in options[:index]:
            raise _USAGE_ERROR(f"`{param.opts[0]}` is given twice: give it once", ctx)


def _refuse_empty(values: dict[str, Any], given: list[Any], ctx: Any) -> None:
    """Raise click's error for an option or an argument whose value, or one of whose values, is blank."""
    for param in given:
        value = values.get(param.name)
        words = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(word, str) and not word.strip() for word in words):
            name = param.opts[0] if param.param_type_name == "option" else name_argument(param)
            raise _USAGE_ERROR(f"the value of `{name}` is empty: give one, or leave it out", ctx)


@contextlib.contextmanager
def _escaped_errors() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        error.message = escape_unprintable(error.message).removeprefix("Value error, ")  # pydantic writes it first
        raise


def name_argument(argument: Any) -> str:
    """`SPEC`, `[SPEC]` where it may be left out, `RUN...` where there may be several."""
    name: str = argument.metavar or argument.name.upper()
    return name if argument.nargs == 1 or name.endswith("...") else f"{name}..."


def write_sections(formatter: Any, groups: dict[str, Rows]) -> None:
    """Headings with their rows, all aligned; nothing for a group without rows."""
    names = [name for rows in groups.values() for name, _ in rows if len(name) <= _WIDEST_NAME]
    width = max(map(len, names), default=0)
    for heading, rows in groups.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), help_text) for name, help_text in rows])
