"""The work of `harness validate-config`, once its options are known. Knows no command line parser.

Every format gets the same outcome, wrong usage included.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from harness.cli.collect import collect
from harness.cli.common import Checked, check_file, exit_with, parse_target, unverified
from harness.cli.selection import Selection, selection
from harness.errors import Exit, Refused
from harness.facts.deepspeed import Target
from harness.findings import Finding, Fix, Outcome
from harness.spec.source import decode
from harness.views.style import printable

if TYPE_CHECKING:
    from harness.cli.fixing import Fixed
    from harness.spec.model import Consumer


class Options(NamedTuple):
    """What the command line asks for."""

    files: tuple[str, ...]
    hostfile: str | None = None
    world_size: int | None = None
    overrides: tuple[str, ...] = ()
    deepspeed_version: str | None = None
    consumer: Consumer | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    strict: bool = False
    fix: bool = False
    diff: bool = False
    unsafe_fixes: bool = False
    stdin_filename: str | None = None
    format: str = "text"


class _Item(NamedTuple):
    """One file's result; `fixed` only where fixes were asked for."""

    checked: Checked
    fixed: Fixed | None = None


def validate(options: Options) -> NoReturn:
    """Check, print, and end the program with the worst code of all files."""
    try:
        _usable(options)
        deepspeed = parse_target(options.deepspeed_version)
        wanted = selection(options.select, options.ignore)
    except Refused as refused:
        if options.format == "text":
            raise
        _print(Outcome((), general=refused.findings, code=int(refused.code)), [], options)
        exit_with(refused.code)
    found = collect(options.files)
    general = [*unverified(deepspeed), *found.problems]
    general = [finding for finding in general if finding.is_error or wanted.has(finding.gate)]
    items = []
    for file in found.files:
        items.append(_file(file, options, deepspeed, wanted))
        gc.enable()  # everything is imported by now; `harness.__main__` turned it off
    code = _code(items, general, options)
    reports = tuple(item.checked.report for item in items)
    outcome = Outcome(reports, deepspeed.text, deepspeed.origin, tuple(general), found.passed_over, int(code))
    _print(outcome, items, options)
    exit_with(code)


def _usable(options: Options) -> None:
    """Raises Refused for options that mean nothing together."""
    if options.unsafe_fixes and not (options.fix or options.diff):
        message, title = (
            "`--unsafe-fixes` fixes nothing by itself",
            "add `--diff` to see its changes, `--fix` to make them",
        )
    elif options.stdin_filename is not None and "-" not in options.files:
        message, title = "`--stdin-filename` names standard input, which is not read", "add `-`, or leave it out"
    else:
        return
    raise Refused([Finding("SP011", "error", message, fix=Fix(title))], Exit.USAGE)


def _code(items: list[_Item], general: list[Finding], options: Options) -> Exit:
    """The worst of all files; with `--strict`, a warning is as bad as an error."""
    codes = [item.checked.code for item in items]
    codes += [Exit.USAGE for finding in general if finding.is_error]
    everything = [*general, *(f for item in items for f in item.checked.report.findings)]
    if options.strict and any(f.severity == "warning" for f in everything):
        codes.append(Exit.FINDINGS)
    return max(codes, default=Exit.OK)


def _file(file: str, options: Options, deepspeed: Target, wanted: Selection) -> _Item:
    name, given = file, None
    if file == "-":
        name = options.stdin_filename or "-"
        try:
            given = decode(sys.stdin.buffer.read(), name)
        except Refused as refused:
            return _Item(_unread(name, refused))

    def check(text: str | None) -> Checked:
        checked = check_file(
            name,
            overrides=options.overrides,
            hostfile=options.hostfile,
            world_size=options.world_size,
            deepspeed=deepspeed,
            consumer=options.consumer,
            text=text,
        )
        return _selected(checked, wanted)

    if not (options.fix or options.diff):
        return _Item(check(given))
    return _mended(file, name, given, check, options)


def _unread(name: str, refused: Refused) -> Checked:
    from harness.findings import Report

    return Checked(Report(name, refused.findings), None, None, refused.code)


def _selected(checked: Checked, wanted: Selection) -> Checked:
    if not wanted:
        return checked
    is_spec = checked.run is None or checked.run.kind == "spec"
    readable = checked.run is not None and checked.code is not Exit.USAGE
    report = wanted.apply(checked.report, readable=readable, is_spec=is_spec)
    return checked._replace(report=report, code=Exit.OK if readable and report.ok else checked.code)


def _mended(file: str, name: str, given: str | None, check: _Check, options: Options) -> _Item:
    """Fix the text in memory; write it only for `--fix`, and say what was not written."""
    from harness.cli import fixing

    original = fixing.readable(file)
    text = given if given is not None else original.text if original else None
    if text is None:
        return _Item(check(None))
    before = check(text)
    fixed = fixing.fix(name, text, check, unsafe=options.unsafe_fixes)
    if options.diff or not fixed.changed:
        return _Item(before, fixed)
    failed = fixing.write_fixed(file, original, fixed.after) if original else None
    if failed is not None:
        refused = (*fixed.refused, f"the file was left alone: {failed}")
        return _Item(before, fixed._replace(after=text, applied=(), refused=refused))
    return _Item(fixed.checked._replace(report=fixed.checked.report._replace(fixed=fixed.applied)), fixed)


def _print(outcome: Outcome, items: list[_Item], options: Options) -> None:
    if options.format == "text":
        from harness.cli.telling import tell

        tell(outcome, [(item.checked, item.fixed) for item in items], options)
        return
    for line in _not_fixed(items):
        print(printable(line), file=sys.stderr)
    if options.format == "sarif":
        from harness.views.sarif import as_sarif as view
    else:
        from harness.views import machine_readable

        view = machine_readable.as_json if options.format == "json" else machine_readable.as_github
    output = view(outcome)
    if output:
        print(output)


def _not_fixed(items: list[_Item]) -> list[str]:
    return [
        f"not fixed in {item.checked.report.file}: {reason}"
        for item in items
        if item.fixed
        for reason in dict.fromkeys(item.fixed.refused)
    ]


if TYPE_CHECKING:
    from collections.abc import Callable

    _Check = Callable[[str | None], Checked]
