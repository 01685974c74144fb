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

from harness.cli.choosing import as_yaml
from harness.cli.common import Checked, check_file, exit_with, print_findings, stop_on_errors
from harness.cli.options import AllowCodeOption, HostfileOption, SetOption, SpecArgument, WorldSizeOption
from harness.errors import Exit
from harness.facts import machine
from harness.facts.devices import find_device
from harness.facts.models import configuration
from harness.findings import Finding, Fix, in_reading_order
from harness.launching.here import Here, look_here
from harness.launching.rehearsing import Stage, play
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run
from harness.rehearsal.carry import Quantity, carry
from harness.rehearsal.shrink import SAVE, STEPS, Room, Small, shrink
from harness.rehearsal.verdict import judge
from harness.spec.source import Source
from harness.views import rehearsal as view

NO_ARGS_IS_HELP = True
_NOTHING = "Nothing was written or started"


class Format(StrEnum):
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
    format: Annotated[Format, typer.Option("--format", help="How the result is printed.")] = Format.text,
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
    run = stop_on_errors(checked, _NOTHING)
    here = look_here(variables=run.spec.launch.env)
    target = (Path(folder) / f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    small = _small(checked, run, here, target)
    whole = make_plan(run, Path.cwd())
    if dry_run:
        _print(small, whole, (), [], [], format, target)
        print(f"{_NOTHING}.", file=sys.stderr)
        return
    _refuse_without_training()
    _write(target, small, run)
    options = ["--allow-local-code"] if allow_local_code else []
    orders = _orders(target, small, run)
    played = play(target, here.scripts, orders, SAVE, lambda text: print(text, file=sys.stderr), options)
    found = carry(played.seen, small.plan, whole)
    findings = list(in_reading_order([*played.findings, *judge(found, whole)]))
    body = view.as_json(small, whole, played.stages, found, findings, str(target))
    (target / "rehearsal.json").write_text(body + "\n", encoding="utf-8")
    _print(small, whole, played.stages, found, findings, format, target)
    if not keep:
        _remove_large(target)
    print(f"Logs and figures: {target}", file=sys.stderr)
    failed = [stage.code for stage in played.stages if stage.code]
    exit_with(failed[0] if failed else Exit.FINDINGS if any(f.is_error for f in findings) else Exit.OK)


def _small(checked: Checked, run: Run, here: Here, target: Path) -> Small:
    """The run to rehearse with, or the end of the program."""
    config = configuration(run.spec.model.name_or_path, run.spec.model.config, Path.cwd(), run.spec.model.revision)
    if config is None:
        message = "the model's configuration is not at hand: nothing can be made smaller"
        fix = Fix("name a folder with a `config.json`, or a model of the catalogue such as `llama-3.1-70b`")
        made: Small | Finding = Finding("MM008", "error", message, "model.name_or_path", fix=fix)
    else:
        made = shrink(run, config, _room(here, target), _files(target))
    if isinstance(made, Finding):
        if checked.source is not None and made.key:
            made = made._replace(place=checked.source.place(made.key))
        _end(made, Exit.FINDINGS if made.gate == "MM008" else Exit.PREFLIGHT, checked.source)
    return made


def _room(here: Here, target: Path) -> Room:
    found = machine.accelerators()[: here.num_accelerators] if here.num_accelerators else ()
    gpu = next((device.name for a in found if (device := find_device(a.name)) is not None), None)
    return Room(here.num_accelerators, gpu, machine.memory().available, machine.free_bytes(target) or 0)


def _files(target: Path) -> dict[str, str]:
    return {"model": str(target / "model"), "data": str(target / "data" / "*.jsonl"), "nvme": str(target / "nvme")}


def _orders(target: Path, small: Small, run: Run) -> dict[str, Any]:
    """What `launch/rehearsal_files.py` is to make: tokens for all steps, and a third more to hold out and to waste."""
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
        "longest": settings.sequence // 2 if settings else 128,
    }


def _write(target: Path, small: Small, run: Run) -> None:
    try:
        (target / "nvme").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder `{target}` of the rehearsal cannot be made: {(error.strerror or str(error)).lower()}"
        fix = Fix("give `--folder` a folder that can be written")
        _end(Finding("EN011", "error", message, fix=fix), Exit.USAGE)
    head = f"# {run.name}, made small by `harness rehearse`: what was changed is in rehearsal.json.\n"
    raw = {"name": run.name, **json.loads(json.dumps(small.raw))}
    (target / "spec.yaml").write_text(as_yaml(raw, head), encoding="utf-8")


def _refuse_without_training() -> None:
    missing = [name for name in ("torch", "deepspeed", "transformers") if machine.installed(name) is None]
    if missing:
        names = " and ".join(f"`{name}`" for name in missing)
        fix = Fix("install the training extra there: pip install 'deepspeed-harness[train]'")
        _end(Finding("EN002", "error", f"{names} cannot be found by {sys.executable}", fix=fix), Exit.PREFLIGHT)


def _end(finding: Finding, code: Exit, source: Source | None = None) -> NoReturn:
    print_findings([finding], source)
    print(f"{_NOTHING}.", file=sys.stderr)
    exit_with(code)


def _print(
    small: Small,
    whole: Plan,
    stages: Sequence[Stage],
    found: list[Quantity],
    findings: list[Finding],
    output: Format,
    folder: Path,
) -> None:
    if findings:
        print_findings(findings, None)
    if output is Format.json:
        print(view.as_json(small, whole, stages, found, findings, str(folder)))
    else:
        print(view.text(small, whole, stages, found))


def _remove_large(target: Path) -> None:
    for path in (target / "model", target / "nvme", target / "export", target / "data"):
        shutil.rmtree(path, ignore_errors=True)
    for path in target.glob("runs/*/checkpoints"):
        shutil.rmtree(path, ignore_errors=True)
