# SPDX-License-Identifier: Apache-2.0
"""`harness schema`: the JSON Schema of run specs, for editors, and the same as a page for readers."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference of all keys in Markdown.")] = False,
) -> None:
    """Print the JSON Schema of a run spec.

    An editor with a YAML language server reads it by this first line of a spec:
    # yaml-language-server: $schema=harness.schema.json

    Example: harness schema > harness.schema.json
    """
    from harness.spec.json_schema import run_spec_schema
    from harness.views.spec_reference import render_spec_reference

    described = run_spec_schema()
    print(render_spec_reference(described) if markdown else json.dumps(described, indent=2))
