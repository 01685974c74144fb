"""`harness upgrade-check`: what a configuration means differently under another DeepSpeed release."""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import typer

from harness.check.check_file import CheckedFile, check_file, check_release_verified
from harness.check.file_discovery import discover_files
from harness.cli.console import exit_with
from harness.cli.options import HostfileOption, WorldSizeOption
from harness.cli.validate_config import ConsumerName, FindingsFormat
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget, resolve_target
from harness.findings import CheckOutcome, Finding, Fix
from harness.spec.parse.source import decode

NO_ARGS_IS_HELP = True


def upgrade_check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Run specs, DeepSpeed JSONs, or folders that hold some; `-` is standard input."
        ),
    ],
    from_: Annotated[str, typer.Option("--from", metavar="V", help="The DeepSpeed that is used today.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="V", help="The newer one. Default: the installed one.")
    ] = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    consumer: Annotated[
        ConsumerName | None,
        typer.Option("--consumer", help='Who reads the DeepSpeed JSON and fills its "auto" values. Default: guessed.'),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
    format: Annotated[FindingsFormat, typer.Option("--format", help="How findings are printed.")] = FindingsFormat.text,
) -> None:
    """Tell what a newer DeepSpeed refuses in a file, means by it, has as default, and has mended under it.

    What both releases say alike is left to `validate-config`. Nothing is imported but the file.

    Exit codes: 0 nothing that changes what is trained, 1 something does or is refused, 2 wrong usage or an unreadable
    file.

    Example: harness upgrade-check ds_configs/demo.json --from 0.19.2 --to 0.19.8
    """
    releases = _parse_releases(from_, to)
    found = discover_files(files)
    general = [*(finding for release in releases for finding in check_release_verified(release)), *found.problems]
    asked = consumer.value if consumer else None
    items: list[CheckedFile] = []
    for file in found.files:
        items.append(_compare_releases(file, releases, hostfile, world_size, asked))
        gc.enable()  # everything is imported by now; `harness.__main__` turned it off
    code = _exit_code(items, general, strict=strict)
    old, new = releases
    reports = tuple(item.report for item in items)
    outcome = CheckOutcome(reports, new.text, f"coming from {old.text}", tuple(general), found.passed_over, int(code))
    _print_outcome(outcome, items, format)
    exit_with(code)


def _parse_releases(before: str, after: str | None) -> tuple[DeepSpeedTarget, DeepSpeedTarget]:
    """Both releases. Raises Refused for what is no version, and for the newer one first."""
    try:
        old, new = resolve_target(before), resolve_target(after)
    except ValueError as error:
        fix = Fix("write it as `0.19.8`")
        raise UserError([Finding("SP011", "error", f"--from or --to: {error}", fix=fix)], ExitCode.USAGE) from None
    if old.version > new.version:
        message = f"`--from {old.text}` is newer than `--to {new.text}`"
        raise UserError([Finding("SP011", "error", message, fix=Fix("write them the other way round"))], ExitCode.USAGE)
    return old, new


def _compare_releases(
    file: str,
    releases: tuple[DeepSpeedTarget, DeepSpeedTarget],
    hostfile: str | None,
    world_size: int | None,
    consumer: str | None,
) -> CheckedFile:
    """The file under both releases, and as its findings what differs."""
    from harness.gates.context import Context
    from harness.upgrades import compare_releases

    given = None
    if file == "-":
        try:
            given = decode(sys.stdin.buffer.read(), file)
        except UserError as refused:
            from harness.findings import Report

            return CheckedFile(Report(file, refused.findings), None, None, refused.code)
    before, after = (
        check_file(file, hostfile=hostfile, world_size=world_size, deepspeed=release, consumer=consumer, text=given)  # type: ignore[arg-type]
        for release in releases
    )
    if after.code is ExitCode.USAGE:
        return after
    context = None
    if after.run is not None and after.source is not None:
        context = Context(after.run, after.source, releases[1], after.report.consumer)  # type: ignore[arg-type]
    ignored = set(after.run.spec.ignore) if after.run is not None else set()
    found = compare_releases(before.report.findings, after.report.findings, context, releases)
    report = after.report._replace(
        findings=tuple(f for f in found if f.gate not in ignored),
        ignored=tuple(f for f in found if f.gate in ignored),
        skipped=(),
    )
    return after._replace(report=report, code=ExitCode.OK if report.ok else ExitCode.FINDINGS)


def _exit_code(items: list[CheckedFile], general: list[Finding], *, strict: bool) -> ExitCode:
    codes = [item.code for item in items] + [ExitCode.USAGE for finding in general if finding.is_error]
    everything = [*general, *(f for item in items for f in item.report.findings)]
    if strict and any(finding.severity == "warning" for finding in everything):
        codes.append(ExitCode.FINDINGS)
    return max(codes, default=ExitCode.OK)


def _print_outcome(outcome: CheckOutcome, items: list[CheckedFile], format: FindingsFormat) -> None:
    if format is FindingsFormat.text:
        _print_text(outcome, items)
        return
    if format is FindingsFormat.sarif:
        from harness.views.sarif import findings_as_sarif as view
    else:
        from harness.views import findings_json

        view = findings_json.findings_as_json if format is FindingsFormat.json else findings_json.findings_as_github
    output = view(outcome)
    if output:
        print(output)


def _print_text(outcome: CheckOutcome, items: list[CheckedFile]) -> None:
    from harness.views import findings_text
    from harness.views.style import style_for

    style = style_for(sys.stdout)
    for item in items:
        if item.report.findings:
            print(findings_text.render_findings(item.report.findings, item.source, style))
    if outcome.general:
        print(findings_text.render_findings(outcome.general, None, style))
    table = findings_text.render_file_table(outcome.reports, style) if len(outcome.reports) > 1 else ""
    if table:
        print(f"{table}\n")
    against = f" under DeepSpeed {outcome.deepspeed}, {outcome.origin}"
    print(findings_text.format_summary(outcome.reports, style, against=against, general=outcome.general))
