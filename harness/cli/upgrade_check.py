"""`harness upgrade-check`: what a configuration means differently under another DeepSpeed release."""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import typer

from harness.cli.collect import collect
from harness.cli.common import Checked, check_file, exit_with, unverified
from harness.cli.options import HostfileOption, WorldSizeOption
from harness.cli.validate_config import ConsumerName, Format
from harness.errors import Exit, Refused
from harness.facts.deepspeed import Target, target
from harness.findings import Finding, Fix, Outcome
from harness.spec.source import decode

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
    format: Annotated[Format, typer.Option("--format", help="How findings are printed.")] = Format.text,
) -> None:
    """Tell what a newer DeepSpeed refuses in a file, means by it, has as default, and has mended under it.

    What both releases say alike is left to `validate-config`. Nothing is imported but the file.

    Exit codes: 0 nothing that changes what is trained, 1 something does or is refused, 2 wrong usage or an unreadable
    file.

    Example: harness upgrade-check ds_configs/demo.json --from 0.19.2 --to 0.19.8
    """
    releases = _releases(from_, to)
    found = collect(files)
    general = [*(finding for release in releases for finding in unverified(release)), *found.problems]
    asked = consumer.value if consumer else None
    items: list[Checked] = []
    for file in found.files:
        items.append(_file(file, releases, hostfile, world_size, asked))
        gc.enable()  # everything is imported by now; `harness.__main__` turned it off
    code = _code(items, general, strict=strict)
    old, new = releases
    reports = tuple(item.report for item in items)
    outcome = Outcome(reports, new.text, f"coming from {old.text}", tuple(general), found.passed_over, int(code))
    _print(outcome, items, format)
    exit_with(code)


def _releases(before: str, after: str | None) -> tuple[Target, Target]:
    """Both releases. Raises Refused for what is no version, and for the newer one first."""
    try:
        old, new = target(before), target(after)
    except ValueError as error:
        fix = Fix("write it as `0.19.8`")
        raise Refused([Finding("SP011", "error", f"--from or --to: {error}", fix=fix)], Exit.USAGE) from None
    if old.version > new.version:
        message = f"`--from {old.text}` is newer than `--to {new.text}`"
        raise Refused([Finding("SP011", "error", message, fix=Fix("write them the other way round"))], Exit.USAGE)
    return old, new


def _file(
    file: str, releases: tuple[Target, Target], hostfile: str | None, world_size: int | None, consumer: str | None
) -> Checked:
    """The file under both releases, and as its findings what differs."""
    from harness.gates.context import Context
    from harness.upgrades import compare

    given = None
    if file == "-":
        try:
            given = decode(sys.stdin.buffer.read(), file)
        except Refused as refused:
            from harness.findings import Report

            return Checked(Report(file, refused.findings), None, None, refused.code)
    before, after = (
        check_file(file, hostfile=hostfile, world_size=world_size, deepspeed=release, consumer=consumer, text=given)  # type: ignore[arg-type]
        for release in releases
    )
    if after.code is Exit.USAGE:
        return after
    context = None
    if after.run is not None and after.source is not None:
        context = Context(after.run, after.source, releases[1], after.report.consumer)  # type: ignore[arg-type]
    ignored = set(after.run.spec.ignore) if after.run is not None else set()
    found = compare(before.report.findings, after.report.findings, context, releases)
    report = after.report._replace(
        findings=tuple(f for f in found if f.gate not in ignored),
        ignored=tuple(f for f in found if f.gate in ignored),
        skipped=(),
    )
    return after._replace(report=report, code=Exit.OK if report.ok else Exit.FINDINGS)


def _code(items: list[Checked], general: list[Finding], *, strict: bool) -> Exit:
    codes = [item.code for item in items] + [Exit.USAGE for finding in general if finding.is_error]
    everything = [*general, *(f for item in items for f in item.report.findings)]
    if strict and any(finding.severity == "warning" for finding in everything):
        codes.append(Exit.FINDINGS)
    return max(codes, default=Exit.OK)


def _print(outcome: Outcome, items: list[Checked], format: Format) -> None:
    if format is Format.text:
        _tell(outcome, items)
        return
    if format is Format.sarif:
        from harness.views.sarif import as_sarif as view
    else:
        from harness.views import machine_readable

        view = machine_readable.as_json if format is Format.json else machine_readable.as_github
    output = view(outcome)
    if output:
        print(output)


def _tell(outcome: Outcome, items: list[Checked]) -> None:
    from harness.views import text
    from harness.views.style import style_for

    style = style_for(sys.stdout)
    for item in items:
        if item.report.findings:
            print(text.findings(item.report.findings, item.source, style))
    if outcome.general:
        print(text.findings(outcome.general, None, style))
    table = text.by_file(outcome.reports, style) if len(outcome.reports) > 1 else ""
    if table:
        print(f"{table}\n")
    against = f" under DeepSpeed {outcome.deepspeed}, {outcome.origin}"
    print(text.summary(outcome.reports, style, against=against, general=outcome.general))
