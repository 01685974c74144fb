# SPDX-License-Identifier: Apache-2.0
"""`harness doctor`: checks of this machine, each with its meaning for training and its fix."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import exit_with
from harness.cli.options import refuse_unread
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode, UserError, user_error
from harness.facts.model_lookup import find_configuration
from harness.findings import Finding, Fix
from harness.hostinfo.model_answers import ask_installed_model
from harness.launching.programs import aio_tuning, benchmark_runner
from harness.launching.programs.doctor_checks import run_checks
from harness.views import doctor as view
from harness.views import model_screen
from harness.views.style import style_for


def doctor(
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also benchmark this machine; takes half a minute.")
    ] = False,
    disk: Annotated[
        str | None, typer.Option("--disk", metavar="FOLDER", help="With --measure: a folder on the disk to measure.")
    ] = None,
    tune_nvme: Annotated[
        str | None,
        typer.Option("--tune-nvme", metavar="FOLDER", help="Find fast I/O settings for NVMe offload on this disk."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="FOLDER", help="Ask a small copy of this model what a run may do with it."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="N",
            min=1.0,
            max=3600.0,
            help=f"With --tune-nvme: duration of the search. Default: {aio_tuning.SEARCH_SECONDS:.0f}.",
        ),
    ] = None,
) -> None:
    """Check this machine: versions, compilers, accelerators, memory, left-overs of earlier runs. With NVIDIA GPUs a
    child process checks that torch can use them.

    `--measure` benchmarks host memory, CPU Adam, the disk through DeepSpeed's aio, GPU copies and matrix products, in
    20 seconds plus the start of torch. It leaves no file behind. `--tune-nvme` searches DeepSpeed's own range of aio
    settings and prints the best one as a part of a run spec.

    `--model` builds a small copy of the configuration with the installed transformers, in a child process with limits,
    and asks it: packing, parallel degrees, checkpointing, loss, adapters, saved names, size. It loads no weights and
    keeps the answers.

    Exit codes: 0 training can start here, 1 a requirement of every training is missing; with `--model` 0 for a causal
    language model, else 1.

    Example: harness doctor --format json
    """
    if model is not None:
        others = {"--measure": measure, "--disk": disk, "--tune-nvme": tune_nvme, "--seconds": seconds}
        refuse_unread("cannot be used with `--model`", others)
        _ask_model(model, format)
        return
    if tune_nvme is not None:
        refuse_unread("cannot be used with `--tune-nvme`", {"--measure": measure, "--disk": disk})
        duration = aio_tuning.SEARCH_SECONDS if seconds is None else seconds
        _tune_nvme(_require_folder(tune_nvme, "--tune-nvme"), duration, format)
        return
    refuse_unread("needs `--tune-nvme`", {"--seconds": seconds})
    if not measure:
        refuse_unread("needs `--measure`", {"--disk": disk})
    folder = None if disk is None else _require_folder(disk, "--disk")
    rows, measurements = run_checks(), {}
    if measure:
        measurements = benchmark_runner.benchmark_host(folder)
        rows = (*rows, *benchmark_runner.to_doctor_checks(measurements))
    section = benchmark_runner.to_cluster_section(measurements)
    if format is OutputFormat.json:
        print(view.checks_as_json(rows, measured=measurements, cluster=section))
    else:
        print(view.render_checks(rows, style_for(sys.stdout), section))
    exit_with(ExitCode.FINDINGS if any(row.state == "missing" for row in rows) else ExitCode.OK)


def _ask_model(name: str, format: OutputFormat) -> None:
    config = find_configuration(name)
    if config is None or not isinstance(config.get("model_type"), str):
        message = f"`{name}` has no `config.json` with a `model_type` on this machine"
        fix = Fix("name the folder of a model, a name in the local Hugging Face cache or in the catalogue")
        raise UserError([Finding("MD102", "error", message, fix=fix)], ExitCode.USAGE)
    answers = ask_installed_model(config)
    if format is OutputFormat.json:
        print(model_screen.answers_as_json(name, answers))
    else:
        print(model_screen.render_answers(name, answers, style_for(sys.stdout)))
    exit_with(ExitCode.OK if answers.causal else ExitCode.FINDINGS)


def _tune_nvme(folder: Path, seconds: float, format: OutputFormat) -> None:
    """Print progress to stderr, the fragment of a run spec to stdout."""

    def print_trial(trial: dict[str, object]) -> None:
        print(view.format_aio_trial(trial), file=sys.stderr, flush=True)

    tuned = aio_tuning.tune_aio(folder, print_trial, seconds)
    print(view.format_aio_result(tuned), file=sys.stderr)
    as_json = json.dumps({"deepspeed": {"aio": tuned.aio}}) + "\n"
    print(as_json if format is OutputFormat.json else tuned.to_spec_fragment(), end="")


def _require_folder(disk: str, option: str) -> Path:
    if Path(disk).is_dir():
        return Path(disk)
    message = f"`{option} {disk}` is not a folder"
    raise user_error("MM007", message, fix="name a folder on the disk to measure", code=ExitCode.USAGE)
