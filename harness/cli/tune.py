# SPDX-License-Identifier: Apache-2.0
"""`harness tune`: time the planner's best settings in short runs, and write the fastest as a spec."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.cli.error_handler import exit_refused
from harness.cli.options import AllowCodeOption, HostfileOption, SetOption, SpecArgument
from harness.cli.output_format import FormatOption, OutputFormat
from harness.errors import ExitCode, UserError
from harness.file_io import write_atomically
from harness.findings import Finding, Fix
from harness.hostinfo.training_packages import missing_packages_finding
from harness.launching.programs.trial_runner import TrialSettings
from harness.launching.programs.trial_series import TrialObserver, check_request, run_trials
from harness.launching.setup.run_dir import make_output_folder
from harness.tuning.candidate_search import TuneRequest, TuneSearch, find_candidates
from harness.tuning.candidates import Candidate
from harness.tuning.trials import Trial, num_warmup_steps
from harness.tuning.tune_report import TuneReport
from harness.tuning.tune_result import build_tune_report, build_tuned_spec
from harness.views import tune as view
from harness.views.launch import format_path
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_NOTHING_WRITTEN = "Nothing was written or started"


def tune(
    spec: SpecArgument,
    overrides: SetOption = None,
    hostfile: HostfileOption = None,
    trials: Annotated[
        int,
        typer.Option("--trials", min=2, max=64, metavar="N", help="Candidates at most, the unchanged spec included."),
    ] = 6,
    steps: Annotated[int, typer.Option("--steps", min=5, metavar="N", help="Steps per trial.")] = 12,
    trial_timeout: Annotated[
        float, typer.Option("--trial-timeout", min=1.0, metavar="SECONDS", help="Time limit of one trial.")
    ] = 1800.0,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="File for the fastest spec. Default: in the tuning's folder."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Let `--out` replace an existing file, such as the spec itself.")
    ] = False,
    folder: Annotated[
        str, typer.Option("--folder", metavar="FOLDER", help="Folder for trials and evidence, shared by all hosts.")
    ] = "tuning",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the candidates; do nothing.")] = False,
    allow_local_code: AllowCodeOption = False,
    format: FormatOption = OutputFormat.text,
) -> None:
    """Run the planner's best settings for a few steps each under the `deepspeed` launcher; write the fastest as a spec.

    Candidates differ in ZeRO stage, offload, micro-batch against accumulation, and activation checkpointing; they train
    the same model. The unchanged spec runs first. A candidate that fails or hangs is reported with its cause.

    Exit codes: 0 measured (also if the unchanged spec is the fastest), 1 errors in the spec, or no candidate could be
    measured, 2 wrong usage, 4 this machine cannot run it, 130 Ctrl-C.

    Example: harness tune ds_configs/demo.yaml --dry-run
    """
    if overwrite and out is None:
        raise typer.BadParameter("needs `--out`: the tuning's folder is new", param_hint="--overwrite")
    target = Path(out).absolute() if out is not None else None
    if target is not None and target.exists() and not overwrite:
        raise typer.BadParameter(f"`{out}` exists; `--overwrite` replaces it", param_hint="--out")
    if spec == "-":
        raise typer.BadParameter("every trial reads the spec: name a file, not standard input", param_hint="SPEC")
    request = TuneRequest(spec, list(overrides or ()), hostfile, trials, allow_local_code)
    checked, num_accelerators = check_request(request, dry_run=dry_run)
    run, skip = exit_on_errors(checked, _NOTHING_WRITTEN), num_warmup_steps(steps)
    try:
        search = find_candidates(request, checked, run, num_accelerators)
        if dry_run:
            report = build_tune_report(search, [Trial(c) for c in search.candidates], steps, skip)
            _print_report(report, format, None, only_plan=True)
            print(f"{_NOTHING_WRITTEN}.", file=sys.stderr)
            return
        if (missing := missing_packages_finding()) is not None:
            raise UserError([missing], ExitCode.PREFLIGHT)
        home = make_output_folder(Path(folder) / f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}", "trials")
    except UserError as refused:
        exit_refused(refused, _NOTHING_WRITTEN, checked.lines_of)
    options = [*(["--hostfile", hostfile] if hostfile else []), *(["--allow-local-code"] if allow_local_code else [])]
    options += [] if run.cluster else ["--num-gpus", str(run.parallel_dims.world_size)]
    settings = TrialSettings(spec, search.overrides, options, home, steps, skip, trial_timeout)
    series = run_trials(settings, search, TrialObserver(_print_start, _print_end))
    report = build_tune_report(search, series.trials, steps, skip, complete=series.exit_code is None)
    spec_file = _write_spec(search, report, target or home / Path(spec).name)
    _write_or_warn(home / "evidence.json", json.dumps(report.to_json(), indent=2) + "\n")
    _print_report(report, format, spec_file)
    print(f"Trials and evidence: {format_path(home)}", file=sys.stderr)
    if series.exit_code is not None:
        exit_with(series.exit_code)
    if report.ranking.best is None:
        fix = Fix(f"read the logs in `{format_path(home)}`; `harness explain --log` names a cause")
        print_findings([Finding("MM014", "error", "no candidate could be measured", fix=fix)], None)
        exit_with(ExitCode.FINDINGS)


def _print_start(candidate: Candidate, number: int, of: int) -> None:
    print(f"trial {number}/{of}: {candidate.title} ...", file=sys.stderr)


def _print_end(trial: Trial, number: int, of: int) -> None:
    print(view.format_progress(trial, number, of), file=sys.stderr)


def _write_spec(search: TuneSearch, report: TuneReport, file: Path) -> Path | None:
    """Write the fastest as a spec, and the evidence next to it; None where there is nothing to write, or it failed."""
    tuned = build_tuned_spec(search, report, file)
    sys.stderr.writelines(f"{note}\n" for note in tuned.notes)
    if tuned.text is None or not _write_or_warn(file, tuned.text):
        return None
    _write_or_warn(file.with_name(f"{file.name}.evidence.json"), json.dumps(report.to_json(), indent=2) + "\n")
    return file


def _write_or_warn(file: Path, text: str) -> bool:
    """Write a file, or print why it cannot be written: the measurements are still printed."""
    try:
        write_atomically(file, text)
    except OSError as error:
        print(f"{format_path(file)} could not be written: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return False
    return True


def _print_report(report: TuneReport, format: OutputFormat, spec_file: Path | None, *, only_plan: bool = False) -> None:
    if format is OutputFormat.json:
        print(json.dumps({**report.to_json(), "written": str(spec_file) if spec_file else None}, indent=2))
        return
    style, width = style_for(sys.stdout), shutil.get_terminal_size((120, 24)).columns
    print(view.render_dry_run(report, style, width) if only_plan else view.render_tune_report(report, style, width))
    if spec_file is not None:
        print(f"Wrote {format_path(spec_file)}\nNext: harness launch {shlex.quote(format_path(spec_file))}")
