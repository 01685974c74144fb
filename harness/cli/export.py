"""`harness export`: a Hugging Face folder from a run or a checkpoint."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.checkpoints.latest import find_complete
from harness.cli.console import exit_with, print_findings
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.launching.hosts.local_host import workers_folder
from harness.launching.process.signals import SignalInterrupt, Signals
from harness.launching.setup.launch_checks import check_packages
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.supervise.export_step import run_export
from harness.units import parse_bytes
from harness.views.screen import Screen

NO_ARGS_IS_HELP = True


class LoraMode(StrEnum):
    """What becomes of LoRA adapters."""

    merge = "merge"
    adapter = "adapter"


class Dtype(StrEnum):
    """Number formats of exported weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Annotated[str, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run directory or one of its checkpoints.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to make.")],
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="Number format of the weights. Default: the one trained in.")
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option("--max-shard-size", metavar="SIZE", help="Size of a file at most, such as 5GB. Default: 2GiB."),
    ] = None,
    lora: Annotated[
        LoraMode, typer.Option("--lora", help="Adapters: merged into the weights, or a folder of adapters for peft.")
    ] = LoraMode.merge,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Load the folder with transformers and compare its logits; needs memory for two models."
        ),
    ] = False,
    allow_local_code: Annotated[
        bool,
        typer.Option("--allow-local-code", help="Run the Python code that the model of this checkpoint brings."),
    ] = False,
) -> None:
    """Write weights (safetensors), configuration and tokenizer so that plain `transformers` loads them.

    Example: harness export runs/latest exported-model
    """
    try:
        checkpoint = _find_checkpoint(Path(run))
        _check_output_folder(Path(out))
        _check_installed()
        options = _export_args(dtype, max_shard_size, lora, verify=verify)
        options += ["--allow-local-code"] if allow_local_code else []
    except UserError as refused:
        print_findings(refused.findings, None)
        print("Nothing was written.", file=sys.stderr)
        exit_with(refused.code)
    with Signals() as signals:
        services = LaunchContext(workers_folder(), Screen(), signals)
        try:
            code = run_export(checkpoint, Path(out), options, services, None)
        except SignalInterrupt as stop:
            print(f"stopped, {out} was not made", file=sys.stderr)
            exit_with(128 + stop.signum)
    exit_with(code if code >= 0 else 128 - code)


def _export_args(dtype: Dtype | None, max_shard_size: str | None, lora: LoraMode, *, verify: bool) -> list[str]:
    """For `export_worker.py`."""
    options = ["--dtype", dtype.value] if dtype else []
    if max_shard_size is not None:
        try:
            size = parse_bytes(max_shard_size)
        except ValueError as error:
            fix = Fix("write a size such as 500MB or 2GiB")
            raise UserError(
                [Finding("SP011", "error", f"`--max-shard-size` {error}", fix=fix)], ExitCode.USAGE
            ) from None
        options += ["--max-shard-bytes", str(size)]
    options += ["--lora", lora.value] if lora is not LoraMode.merge else []
    return [*options, "--verify"] if verify else options


def _find_checkpoint(folder: Path) -> Path:
    found = find_complete(folder) if folder.is_dir() else None
    if found is None:
        what = "has no complete checkpoint" if folder.is_dir() else "is not a folder"
        raise UserError(
            [Finding("CK001", "error", f"`{folder}` {what}", fix=Fix("name a run directory or a checkpoint in it"))],
            ExitCode.USAGE,
        )
    return found


def _check_output_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "is not empty" if out.is_dir() else "is not a folder"
        raise UserError(
            [Finding("CK002", "error", f"`{out}` {what}", fix=Fix("name a folder that does not exist yet"))],
            ExitCode.USAGE,
        )


def _check_installed() -> None:
    missing = check_packages(("torch", "deepspeed", "transformers", "safetensors"))
    if missing:
        raise UserError(missing, ExitCode.PREFLIGHT)
