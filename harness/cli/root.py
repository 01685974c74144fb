"""What `harness` itself takes, before the name of a command."""

from __future__ import annotations

from typing import Annotated

import typer


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"harness {version('deepspeed-harness')}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Validate, plan, render, launch and report DeepSpeed training runs from one YAML run spec."""
