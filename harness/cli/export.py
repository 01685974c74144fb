# SPDX-License-Identifier: Apache-2.0
"""`harness export`: a Hugging Face folder from a run or a checkpoint."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.completion import complete_run
from harness.cli.console import exit_with
from harness.cli.error_handler import exit_refused
from harness.cli.options import refuse_unread
from harness.errors import UserError
from harness.launching.process.signals import SignalInterrupt, signal_name
from harness.launching.programs.hub_push import check_repository, open_repository, push_folder
from harness.launching.programs.model_export import ExportOptions, ExportPlan, export_checkpoint, plan_export
from harness.run_records.run_list import resolve_run_path
from harness.run_records.run_record import read_run_record
from harness.views.model_card import render_model_card
from harness.views.screen import Screen

NO_ARGS_IS_HELP = True


class LoraMode(StrEnum):
    """Exports of LoRA adapters."""

    merge = "merge"
    adapter = "adapter"


class Dtype(StrEnum):
    """Number formats of exported weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A run (its directory, its name below `runs`, or `latest`), whose last complete checkpoint is "
            "exported; or one of its checkpoints.",
            autocompletion=complete_run,
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Output folder; it must not exist yet.")],
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Export the checkpoint of the run with the lowest held-out loss, not the last complete one."
        ),
    ] = False,
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="Number format of the weights. Default: the format of the training.")
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option("--max-shard-size", metavar="SIZE", help="Largest size of a file, such as 5GB. Default: 2GiB."),
    ] = None,
    lora: Annotated[
        LoraMode, typer.Option("--lora", help="Merge adapters into the weights, or write an adapter folder for peft.")
    ] = LoraMode.merge,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Load the folder with transformers and compare its logits. Needs memory for two models."
        ),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="OWNER/NAME",
            help="Upload the folder with a model card to a repository of the Hugging Face Hub. A new one is private.",
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With `--push`: a new repository is public.")] = False,
    allow_local_code: Annotated[
        bool,
        typer.Option(
            "--allow-local-code", help="Run the Python code that is stored with the model of this checkpoint."
        ),
    ] = False,
) -> None:
    """Export a checkpoint as a Hugging Face folder (safetensors, configuration, tokenizer) for plain `transformers`.

    `harness checkpoint ls RUN` lists the checkpoints of a run and marks the best.

    Example: harness export latest exported-model
    """
    if push is None:
        refuse_unread("needs `--push`", {"--public": public})
    options = ExportOptions(
        dtype.value if dtype else None, max_shard_size, lora.value, verify=verify, allow_code=allow_local_code
    )
    try:
        if push is not None:
            check_repository(push)
        plan = plan_export(resolve_run_path(run), Path(out), options, best=best)
        if push is not None:
            open_repository(push, public=public)
    except UserError as refused:
        exit_refused(refused, "Nothing was written")
    try:
        code = export_checkpoint(plan, Screen())
        if code > 128 and not plan.out.exists():
            name = signal_name(code - 128)
            print(f"the export was killed by {name}, {out} was not made; the same command starts anew", file=sys.stderr)
    except SignalInterrupt as stop:
        print(f"stopped, {out} was not made", file=sys.stderr)
        code = 128 + stop.signum
    if push is not None and code == 0:
        _push(plan, push)
    exit_with(code)


def _push(plan: ExportPlan, repo: str) -> None:
    """Write the card and upload the folder. A failed upload ends the program with its finding."""
    run_dir = plan.checkpoint.parent.parent.resolve()
    card = render_model_card(read_run_record(run_dir), plan.out, plan.checkpoint.name)
    (plan.out / "README.md").write_text(card, encoding="utf-8")
    try:
        print(push_folder(plan.out, repo, f"{run_dir.name}, {plan.checkpoint.name}"))
    except UserError as refused:
        exit_refused(refused, f"{plan.out} was exported and not uploaded")
