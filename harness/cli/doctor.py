"""`harness doctor`: what this machine has, what that makes possible, and how to mend what is missing."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.common import exit_with
from harness.errors import Exit
from harness.launching.checkup import examine
from harness.views import doctor as view
from harness.views.style import style_for


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


def doctor(
    format: Annotated[Format, typer.Option("--format", help="How the rows are printed.")] = Format.text,
) -> None:
    """Look at this machine: versions, compilers, accelerators, memory, left-overs. Imports neither torch nor DeepSpeed.

    Exit codes: 0 training can start here, 1 something that every training needs is missing.

    Example: harness doctor --format json
    """
    rows = examine()
    print(view.as_json(rows) if format is Format.json else view.text(rows, style_for(sys.stdout)))
    exit_with(Exit.FINDINGS if any(row.state == "missing" for row in rows) else Exit.OK)
