# SPDX-License-Identifier: Apache-2.0
"""`harness simulate`: DeepSpeed's own engine at full size on a simulated GPU, next to the plan."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.plan_commands import make_command

NO_ARGS_IS_HELP = True
_TEXT = """Run DeepSpeed's engine at full size on a simulated GPU, and show bytes and time next to the plan's. Needs the
packages of training and no GPU.

Exit code 1: it runs out of memory, or has a race.

Example: harness simulate ds_configs/llama-3.1-8b-zero3.yaml --layers 8
"""

simulate = make_command(
    "simulate",
    _TEXT,
    "spec hostfile world_size overrides here format rank layers races trace",
    fixed={"simulate": True},
    arguments={"spec": Annotated[str, typer.Argument(metavar="SPEC", help="A run spec (YAML).", show_default=False)]},
)
