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


def check_stage(stage: int | None) -> None:
    """Raises UserError for a stage that there is not."""
    if stage is not None and not 0 <= stage <= 3:
        raise usage_error(f"`--zero-stage {stage}` is not a stage", "choose 0, 1, 2 or 3")


def unknown_model(why_not: str) -> Finding:
    """The error of a model whose size nobody knows."""
    fix = Fix("name a folder with a `config.json`, or a model of the catalogue such as `llama-3.1-70b`, or write `9b`")
    return Finding("MM001", "error", f"the model's size is not known: {why_not}"[:400], "model.name_or_path", fix=fix)
