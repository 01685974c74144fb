# SPDX-License-Identifier: Apache-2.0
"""The DeepSpeed release to check against: parsed from `--deepspeed-version`, and whether the gates know it."""

from __future__ import annotations

from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import VERIFIED_RANGE, DeepSpeedTarget, parse_version, resolve_target
from harness.findings import Finding, Fix


def parse_target(version: str | None) -> DeepSpeedTarget:
    """The DeepSpeed to check against. Raises UserError when `--deepspeed-version` is no version."""
    try:
        return resolve_target(version)
    except ValueError as error:
        raise UserError(
            [Finding("SP011", "error", f"--deepspeed-version: {error}", fix=Fix("write it as `0.19.8`"))],
            ExitCode.USAGE,
        ) from None


def check_release_verified(deepspeed: DeepSpeedTarget) -> list[Finding]:
    """EN020 where the gates were not verified for this release."""
    first, last = map(parse_version, VERIFIED_RANGE)
    if first <= deepspeed.version <= last:
        return []
    message = f"the gates were not verified for DeepSpeed {deepspeed.text} ({deepspeed.origin})"
    verified = f"they were verified from {VERIFIED_RANGE[0]} to {VERIFIED_RANGE[1]}"
    note = f"{verified}; the rules of the nearest release apply"
    return [Finding("EN020", "info", message, notes=(note,), fix=Fix("check the findings yourself"))]
