# SPDX-License-Identifier: Apache-2.0
"""Check files under two DeepSpeed releases; the findings of a file are what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.check.check_file import CheckedFile, check_file
from harness.check.check_files import check_consumer_read, read_stdin, unreadable_file, worst_exit_code
from harness.check.file_discovery import discover_files
from harness.errors import ExitCode, UserError, user_error
from harness.facts.deepspeed_version import DeepSpeedTarget, check_release_verified, resolve_target
from harness.findings import CheckOutcome, Finding, Fix
from harness.gates.context import Context
from harness.spec.run_spec import Consumer
from harness.upgrades.release_comparison import compare_releases


class UpgradeOptions(NamedTuple):
    """The options of `harness upgrade-check`."""

    files: Sequence[str]
    before: str
    after: str | None = None
    hostfile: str | None = None
    world_size: int | None = None
    consumer: Consumer | None = None
    strict: bool = False


_Releases = tuple[DeepSpeedTarget, DeepSpeedTarget]


def compare_files(options: UpgradeOptions) -> tuple[CheckOutcome, list[CheckedFile]]:
    """The outcome of the whole call, with the worst exit code, and each file's result. Raises UserError for
    invalid releases.
    """
    releases = parse_releases(options.before, options.after)
    files = discover_files(options.files)
    general = [*(finding for release in releases for finding in check_release_verified(release)), *files.problems]
    results = [_compare_file(file, releases, options) for file in files.files]
    general += check_consumer_read(options.consumer, results)
    code = worst_exit_code(results, general, strict=options.strict)
    old, new = releases
    reports = tuple(result.report for result in results)
    return (
        CheckOutcome(reports, new.text, f"coming from {old.text}", tuple(general), files.passed_over, int(code)),
        results,
    )


def parse_releases(before: str, after: str | None) -> _Releases:
    """Both releases. Raises UserError for what is no version, and for the newer one first."""
    try:
        old, new = resolve_target(before), resolve_target(after)
    except ValueError as error:
        raise user_error("SP011", f"--from or --to: {error}", fix="write it as `0.19.8`", code=ExitCode.USAGE) from None
    if old.version > new.version:
        message = f"`--from {old.text}` is newer than `--to {new.text}`"
        raise UserError([Finding("SP011", "error", message, fix=Fix("write them the other way round"))], ExitCode.USAGE)
    return old, new


def _compare_file(file: str, releases: _Releases, options: UpgradeOptions) -> CheckedFile:
    text = None
    if file == "-":
        try:
            text = read_stdin(file)
        except UserError as refused:
            return unreadable_file(file, refused)
    before, after = (
        check_file(
            file,
            hostfile=options.hostfile,
            world_size=options.world_size,
            deepspeed=release,
            consumer=options.consumer,
            text=text,
        )
        for release in releases
    )
    if after.code is ExitCode.USAGE:
        return after
    context = None
    if after.run is not None and after.source is not None:
        context = Context(after.run, after.source, releases[1], after.report.consumer)  # type: ignore[arg-type]
    ignored = set(after.run.spec.ignore) if after.run is not None else set()
    findings = compare_releases(before.report.findings, after.report.findings, context, releases)
    report = after.report._replace(
        findings=tuple(f for f in findings if f.gate not in ignored),
        ignored=tuple(f for f in findings if f.gate in ignored),
        skipped=(),
    )
    return after._replace(report=report, code=ExitCode.OK if report.ok else ExitCode.FINDINGS)
