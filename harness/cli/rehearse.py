"""`harness rehearse`: the same run made small, through all its phases, before a week-long one."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from harness.check.check_file import CheckedFile, check_file
from harness.cli.auto_plan import as_yaml
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.cli.options import AllowCodeOption, HostfileOption, SetOption, SpecArgument, WorldSizeOption
from harness.errors import ExitCode
from harness.facts.devices import find_device
from harness.facts.model_lookup import find_configuration
from harness.findings import Finding, Fix, sort_findings
from harness.hostinfo import machine
from harness.launching.hosts.local_host import LocalHost, inspect_local_host
from harness.launching.programs.rehearsal_runner import RehearsalStage, run_rehearsal
from harness.launching.setup.launch_checks import check_packages
from harness.plan.planner import Plan, make_plan
from harness.plan.resolved_run import ResolvedRun
from harness.rehearsal.extrapolation import Quantity, extrapolate
from harness.rehearsal.rehearsal_findings import evaluate_rehearsal
from harness.rehearsal.small_run import SAVE_STEPS, STEPS, AvailableResources, SmallRun, shrink_run
from harness.spec.parse.source import Source
from harness.views import rehearsal as view

NO_ARGS_IS_HELP = True
_NOTHING_WRITTEN = "Nothing was written or started"


class OutputFormat(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


def rehearse(
    spec: SpecArgument,
    overrides: SetOption = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    folder: Annotated[
        str, typer.Option("--folder", metavar="FOLDER", help="Where the rehearsal's files go; memory and disk are its.")
    ] = "rehearsals",
    allow_local_code: AllowCodeOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be changed and what that run would need; do nothing.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep model, checkpoints and export; otherwise logs and figures alone.")
    ] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="How the result is printed.")] = OutputFormat.text,
) -> None:
    """Run the same recipe small enough for this machine: load, train, save, kill, resume, export, and carry over.

    With accelerators the width, the sequence length and the settings of a rank stay, and layers and ranks are fewer;
    on a CPU the width is scaled too. What is changed is listed. Weights are random, records made up. Measured memory
    and time are compared with the small run's plan and carried over to the whole run by its plan.

    Exit codes: 0 all phases ran and the whole run fits as far as can be told, 1 errors in the spec, or it does not fit,
    2 wrong usage, 4 this machine cannot run it, else the code of the phase that failed.

    Example: harness rehearse ds_configs/llama-3.1-70b-zero3-cpu-offload.yaml
    """
    checked = check_file(
        spec, overrides=overrides, hostfile=hostfile, world_size=world_size, allow_code=allow_local_code
    )
    run = exit_on_errors(checked, _NOTHING_WRITTEN)
    here = inspect_local_host(variables=run.spec.launch.env)
    target = (Path(folder) / f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    small = _shrink_run(checked, run, here, target)
    whole = make_plan(run, Path.cwd())
    if dry_run:
        _print_rehearsal(small, whole, (), [], [], format, target)
        print(f"{_NOTHING_WRITTEN}.", file=sys.stderr)
        return
    _require_training_packages()
    _write_spec(target, small, run)
    options = ["--allow-local-code"] if allow_local_code else []
    orders = _synthetic_files_config(target, small, run)
    played = run_rehearsal(target, here.scripts, orders, SAVE_STEPS, lambda text: print(text, file=sys.stderr), options)
    found = extrapolate(played.measurements, small.plan, whole)
    findings = list(sort_findings([*played.findings, *evaluate_rehearsal(found, whole)]))
    body = view.rehearsal_as_json(small, whole, played.stages, found, findings, str(target))
    (target / "rehearsal.json").write_text(body + "\n", encoding="utf-8")
    _print_rehearsal(small, whole, played.stages, found, findings, format, target)
    if not keep:
        _remove_large_files(target)
    print(f"Logs and figures: {target}", file=sys.stderr)
    failed = [stage.code for stage in played.stages if stage.code]
    exit_with(failed[0] if failed else ExitCode.FINDINGS if any(f.is_error for f in findings) else ExitCode.OK)


def _shrink_run(checked: CheckedFile, run: ResolvedRun, here: LocalHost, target: Path) -> SmallRun:
    """The run to rehearse with, or the end of the program."""
    config = find_configuration(run.spec.model.name_or_path, run.spec.model.config, Path.cwd(), run.spec.model.revision)
    if config is None:
        message = "the model's configuration is not at hand: nothing can be made smaller"
        fix = Fix("name a folder with a `config.json`, or a model of the catalogue such as `llama-3.1-70b`")
        made: SmallRun | Finding = Finding("MM008", "error", message, "model.name_or_path", fix=fix)
    else:
        made = shrink_run(run, config, _inspect_resources(here, target), _synthetic_paths(target))
    if isinstance(made, Finding):
        if checked.source is not None and made.key:
            made = made._replace(place=checked.source.place(made.key))
        _exit_with_finding(made, ExitCode.FINDINGS if made.gate == "MM008" else ExitCode.PREFLIGHT, checked.source)
    return made


def _inspect_resources(here: LocalHost, target: Path) -> AvailableResources:
    found = machine.accelerators()[: here.num_accelerators] if here.num_accelerators else ()
    gpu = next((device.name for a in found if (device := find_device(a.name)) is not None), None)
    return AvailableResources(
        here.num_accelerators, gpu, machine.host_memory().available, machine.free_bytes(target) or 0
    )


def _synthetic_paths(target: Path) -> dict[str, str]:
    return {"model": str(target / "model"), "data": str(target / "data" / "*.jsonl"), "nvme": str(target / "nvme")}


def _synthetic_files_config(target: Path, small: SmallRun, run: ResolvedRun) -> dict[str, Any]:
    """What `synthetic_files_worker.py` is to make: tokens for all steps, and a third more to hold out and to waste."""
    data, settings = run.spec.data, small.plan.settings
    tokens = (settings.tokens_per_step if settings else 1 << 14) * STEPS
    columns = {"text": data.text_column, "prompt": data.prompt_column, "completion": data.completion_column}
    columns |= {"messages": data.messages_column} if data.messages_column else {}
    dtype = "bfloat16" if run.spec.precision.bf16 else "float16" if run.spec.precision.fp16 else "float32"
    return {
        "model": str(target / "model"),
        "config": small.config,
        "dtype": dtype,
        "data": str(target / "data" / "records.jsonl"),
        "format": data.format,
        "tokens": int(tokens * 1.34) + 4096,
        "columns": columns,
        "longest": settings.seq_length // 2 if settings else 128,
    }


def _write_spec(target: Path, small: SmallRun, run: ResolvedRun) -> None:
    try:
        (target / "nvme").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder `{target}` of the rehearsal cannot be made: {(error.strerror or str(error)).lower()}"
        fix = Fix("give `--folder` a folder that can be written")
        _exit_with_finding(Finding("EN011", "error", message, fix=fix), ExitCode.USAGE)
    head = f"# {run.name}, made small by `harness rehearse`: what was changed is in rehearsal.json.\n"
    raw = {"name": run.name, **json.loads(json.dumps(small.raw_spec))}
    (target / "spec.yaml").write_text(as_yaml(raw, head), encoding="utf-8")


def _require_training_packages() -> None:
    for finding in check_packages(("torch", "deepspeed", "transformers")):
        _exit_with_finding(finding, ExitCode.PREFLIGHT)


def _exit_with_finding(finding: Finding, code: ExitCode, source: Source | None = None) -> NoReturn:
    print_findings([finding], source)
    print(f"{_NOTHING_WRITTEN}.", file=sys.stderr)
    exit_with(code)


def _print_rehearsal(
    small: SmallRun,
    whole: Plan,
    stages: Sequence[RehearsalStage],
    found: list[Quantity],
    findings: list[Finding],
    output: OutputFormat,
    folder: Path,
) -> None:
    if findings:
        print_findings(findings, None)
    if output is OutputFormat.json:
        print(view.rehearsal_as_json(small, whole, stages, found, findings, str(folder)))
    else:
        print(view.render_rehearsal(small, whole, stages, found))


def _remove_large_files(target: Path) -> None:
    for path in (target / "model", target / "nvme", target / "export", target / "data"):
        shutil.rmtree(path, ignore_errors=True)
    for path in target.glob("runs/*/checkpoints"):
        shutil.rmtree(path, ignore_errors=True)
