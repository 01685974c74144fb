# SPDX-License-Identifier: Apache-2.0
"""Options of `harness plan` that mean nothing: finding MM007."""

from __future__ import annotations

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.units import parse_count


def usage_error(message: str, fix: str) -> UserError:
    """Wrong usage with one finding."""
    return UserError([Finding("MM007", "error", message, fix=Fix(fix))], ExitCode.USAGE)


def parse_count_option(option: str, text: str) -> float:
    """A number such as `70e9` or `15T`. Raises UserError for anything else."""
    try:
        return parse_count(text)
    except ValueError as error:
        raise usage_error(f"`{option}`: {error}", f"give `{option}` a number such as `70e9` or `15T`") from None


def check_stage_and_price(stage: int | None, price: float | None) -> None:
    """Raises UserError with all that is wrong."""
    findings = []
    if stage is not None and not 0 <= stage <= 3:
        message = f"`--zero-stage {stage}` is not a stage"
        findings.append(Finding("MM007", "error", message, fix=Fix("choose 0, 1, 2 or 3")))
    if price is not None and not 0 <= price < 1e9:
        fix = Fix("give the price of a GPU hour, such as `2.5`")
        findings.append(Finding("MM007", "error", f"`--price {price:g}` is not a price", fix=fix))
    if findings:
        raise UserError(findings, ExitCode.USAGE)
