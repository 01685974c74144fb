"""The work of `harness validate-config`, once its options are known. Knows no command line parser.

Every format gets the same outcome, wrong usage included.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from harness.check.check_file import CheckedFile, check_file, check_release_verified, parse_target
from harness.check.file_discovery import discover_files
from harness.check.rule_selection import RuleSelection, parse_rule_selection
from harness.cli.console import exit_with
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import CheckOutcome, Finding, Fix
from harness.spec.parse.source import decode
from harness.views.style import escape_unprintable

if TYPE_CHECKING:
    from harness.check.autofix import FixResult
    from harness.spec.run_spec import Consumer


class ValidateOptions(NamedTuple):
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


class _FileResult(NamedTuple):
    """One file's result; `fixed` only where fixes were asked for."""

    checked: CheckedFile
    fix_result: FixResult | None = None


def validate(options: ValidateOptions) -> NoReturn:
    """Check, print, and end the program with the worst code of all files."""
    try:
        _check_options(options)
        deepspeed = parse_target(options.deepspeed_version)
        wanted = parse_rule_selection(options.select, options.ignore)
    except UserError as refused:
        if options.format == "text":
            raise
        _print_outcome(CheckOutcome((), general=refused.findings, code=int(refused.code)), [], options)
        exit_with(refused.code)
    found = discover_files(options.files)
    general = [*check_release_verified(deepspeed), *found.problems]
    general = [finding for finding in general if finding.is_error or wanted.includes(finding.gate)]
    items = []
    for file in found.files:
        items.append(_check_one_file(file, options, deepspeed, wanted))
        gc.enable()  # everything is imported by now; `harness.__main__` turned it off
    code = _exit_code(items, general, options)
    reports = tuple(item.checked.report for item in items)
    outcome = CheckOutcome(reports, deepspeed.text, deepspeed.origin, tuple(general), found.passed_over, int(code))
    _print_outcome(outcome, items, options)
    exit_with(code)


def _check_options(options: ValidateOptions) -> None:
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
    raise UserError([Finding("SP011", "error", message, fix=Fix(title))], ExitCode.USAGE)


def _exit_code(items: list[_FileResult], general: list[Finding], options: ValidateOptions) -> ExitCode:
    """The worst of all files; with `--strict`, a warning is as bad as an error."""
    codes = [item.checked.code for item in items]
    codes += [ExitCode.USAGE for finding in general if finding.is_error]
    everything = [*general, *(f for item in items for f in item.checked.report.findings)]
    if options.strict and any(f.severity == "warning" for f in everything):
        codes.append(ExitCode.FINDINGS)
    return max(codes, default=ExitCode.OK)


def _check_one_file(
    file: str, options: ValidateOptions, deepspeed: DeepSpeedTarget, wanted: RuleSelection
) -> _FileResult:
    name, given = file, None
    if file == "-":
        name = options.stdin_filename or "-"
        try:
            given = decode(sys.stdin.buffer.read(), name)
        except UserError as refused:
            return _FileResult(_unreadable_file(name, refused))

    def check(text: str | None) -> CheckedFile:
        checked = check_file(
            name,
            overrides=options.overrides,
            hostfile=options.hostfile,
            world_size=options.world_size,
            deepspeed=deepspeed,
            consumer=options.consumer,
            text=text,
        )
        return _apply_selection(checked, wanted)

    if not (options.fix or options.diff):
        return _FileResult(check(given))
    return _fix_file(file, name, given, check, options)


def _unreadable_file(name: str, refused: UserError) -> CheckedFile:
    from harness.findings import Report

    return CheckedFile(Report(name, refused.findings), None, None, refused.code)


def _apply_selection(checked: CheckedFile, wanted: RuleSelection) -> CheckedFile:
    if not wanted:
        return checked
    is_spec = checked.run is None or checked.run.kind == "spec"
    readable = checked.run is not None and checked.code is not ExitCode.USAGE
    report = wanted.filter_report(checked.report, readable=readable, is_spec=is_spec)
    return checked._replace(report=report, code=ExitCode.OK if readable and report.ok else checked.code)


def _fix_file(file: str, name: str, given: str | None, check: _CheckText, options: ValidateOptions) -> _FileResult:
    """Fix the text in memory; write it only for `--fix`, and say what was not written."""
    from harness.check import autofix

    original = autofix.read_if_possible(file)
    text = given if given is not None else original.text if original else None
    if text is None:
        return _FileResult(check(None))
    before = check(text)
    fixed = autofix.apply_fixes(name, text, check, unsafe=options.unsafe_fixes)
    if options.diff or not fixed.changed:
        return _FileResult(before, fixed)
    failed = autofix.write_fixed(file, original, fixed.after) if original else None
    if failed is not None:
        refused = (*fixed.refused, f"the file was left alone: {failed}")
        return _FileResult(before, fixed._replace(after=text, applied=(), refused=refused))
    return _FileResult(fixed.checked._replace(report=fixed.checked.report._replace(fixed=fixed.applied)), fixed)


def _print_outcome(outcome: CheckOutcome, items: list[_FileResult], options: ValidateOptions) -> None:
    if options.format == "text":
        from harness.cli.validation_report import print_report

        print_report(outcome, [(item.checked, item.fix_result) for item in items], options)
        return
    for line in _unapplied_fix_lines(items):
        print(escape_unprintable(line), file=sys.stderr)
    if options.format == "sarif":
        from harness.views.sarif import findings_as_sarif as view
    else:
        from harness.views import findings_json

        view = findings_json.findings_as_json if options.format == "json" else findings_json.findings_as_github
    output = view(outcome)
    if output:
        print(output)


def _unapplied_fix_lines(items: list[_FileResult]) -> list[str]:
    return [
        f"not fixed in {item.checked.report.file}: {reason}"
        for item in items
        if item.fix_result
        for reason in dict.fromkeys(item.fix_result.refused)
    ]


if TYPE_CHECKING:
    from collections.abc import Callable

    _CheckText = Callable[[str | None], CheckedFile]
