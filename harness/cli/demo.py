# SPDX-License-Identifier: Apache-2.0
"""`harness demo NAME`: one idea of distributed training as a short real run on two CPU ranks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import exit_with
from harness.errors import ExitCode
from harness.interpreter import python_command

NO_ARGS_IS_HELP = True
DemoName = Enum(  # type: ignore[misc]
    "DemoName",
    {
        name: name
        for name in (
            "collectives",
            "data-parallel",
            "tensor-parallel",
            "pipeline",
            "zero",
            "offload",
            "accumulation",
        )
    },
    type=str,
)
MARK = "=== demo ==="
"""What a worker prints before its lines, after whatever the engines have printed."""
_WORKER = Path(__file__).resolve().parents[1] / "workers" / "demo_worker.py"
_RANKS = 2
_LIMIT = 600


def demo(
    name: Annotated[DemoName, typer.Argument(metavar="NAME", help=", ".join(each.value for each in DemoName) + ".")],
) -> None:
    """Show one idea of distributed training: the call, the bytes that moved, who waited, and that the result is that
    of one process. Two ranks on the CPU, by gloo and DeepSpeed's own engines; needs the train extra.

    Example: harness demo zero
    """
    with tempfile.TemporaryDirectory(prefix="harness-demo-") as folder:
        ranks = [
            subprocess.Popen(  # noqa: S603
                python_command(str(_WORKER), name.value, str(rank), str(_RANKS), f"{folder}/rendezvous"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(_RANKS)
        ]
        try:
            outputs = [rank.communicate(timeout=_LIMIT)[0] for rank in ranks]
        except subprocess.TimeoutExpired:
            print(f"The demo did not end within {_LIMIT} s.", file=sys.stderr)
            exit_with(ExitCode.FINDINGS)
        finally:
            for rank in ranks:
                rank.kill()
    for rank, output in zip(ranks, outputs, strict=True):
        if rank.returncode:
            last = (output.strip().splitlines() or ["no message"])[-1]
            print(f"The demo failed: {last[:300]}\n`harness doctor` checks torch and DeepSpeed.", file=sys.stderr)
            exit_with(ExitCode.FINDINGS)
    print(outputs[0].partition(f"{MARK}\n")[2].rstrip())
    exit_with(ExitCode.OK)
