"""`harness explain`: what a finding means, at length."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.common import exit_with, print_findings
from harness.errors import Exit
from harness.findings import Finding, Fix


def explain(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A finding's id, such as PP001; none lists them all.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The list as a Markdown table.")] = False,
) -> None:
    """Explain a finding: what is checked, what DeepSpeed would have done, an example, what to use instead.

    Example: harness explain PP001
    """
    from harness.views import gate_pages

    if id is None:
        print(gate_pages.table_markdown() if markdown else gate_pages.table_text())
        return
    page = gate_pages.page(id)
    if page is None:
        better = gate_pages.nearest_id(id)
        print_findings(
            [
                Finding(
                    "SP011",
                    "error",
                    f"`{id}` is no id of a finding",
                    fix=Fix(f"did you mean `{better}`?" if better else "`harness explain` lists them all"),
                )
            ],
            None,
        )
        exit_with(Exit.USAGE)
    print(page)
