"""`harness tune`: short real runs of the planner's best settings, and the fastest as a spec."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from harness.cli.candidate_search import TuneSearch, build_spec_text, find_candidates, find_mismatch
from harness.cli.console import exit_with, print_findings
from harness.cli.options import AllowCodeOption, HostfileOption, SetOption, SpecArgument
from harness.errors import ExitCode
from harness.file_io import write_atomically
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.launching.programs.trial_runner import TrialSettings, run_trial
from harness.launching.setup.launch_checks import check_packages
from harness.tuning.trials import Trial, fastest_trial, num_warmup_steps, rank_trials
from harness.tuning.tune_report import TuneReport
from harness.tuning.tuned_spec import add_header
from harness.views import tune as view
from harness.views.launch import format_path
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_NOTHING_WRITTEN = "Nothing was written or started"


class OutputFormat(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


def tune(
    spec: SpecArgument,
    overrides: SetOption = None,
    hostfile: HostfileOption = None,
    trials: Annotated[
        int, typer.Option("--trials", min=2, max=64, metavar="N", help="Candidates at most, with the spec as it is.")
    ] = 6,
    steps: Annotated[int, typer.Option("--steps", min=5, metavar="N", help="Steps of a trial.")] = 12,
    trial_timeout: Annotated[
        float, typer.Option("--trial-timeout", min=1.0, metavar="SECONDS", help="End a trial that takes longer.")
    ] = 1800.0,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Where the fastest spec goes. Default: into the tuning's folder."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Let `--out` name a file that is there, such as the spec itself.")
    ] = False,
    folder: Annotated[
        str, typer.Option("--folder", metavar="FOLDER", help="Where trials and evidence go; every host must see it.")
    ] = "tuning",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be tried; do nothing.")] = False,
    allow_local_code: AllowCodeOption = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="How the result is printed.")] = OutputFormat.text,
) -> None:
    """Run the planner's best settings for a few steps each under the `deepspeed` launcher; write the fastest as a spec.

    Tried are ZeRO stages, offload, micro-batch against accumulation and activation checkpointing: the global batch, the
    degrees and everything else that is trained stay. The spec as it is comes first. A candidate that runs out of
    memory, fails or hangs is noted with its cause, and the others go on. Ctrl-C ends with what is known so far.

    Exit codes: 0 measured (also where the spec as it is stays), 1 errors in the spec, or no candidate could be
    measured, 2 wrong usage, 4 this machine cannot run it, 130 Ctrl-C.

    Example: harness tune ds_configs/demo.yaml --dry-run
    """
    target = Path(out).absolute() if out is not None else None
    if target is not None and target.exists() and not overwrite:
        raise typer.BadParameter(f"`{out}` is there already; `--overwrite` replaces it", param_hint="--out")
    if spec == "-":
        raise typer.BadParameter("every trial reads the spec anew: name a file", param_hint="SPEC")
    search = find_candidates(spec, list(overrides or ()), hostfile, trials, allow_code=allow_local_code)
    skip = num_warmup_steps(steps)
    tried = [Trial(candidate) for candidate in search.candidates]
    if dry_run:
        _print_tune_report(_build_tune_report(search, tried, steps, skip), format, None, only_plan=True)
        print(f"{_NOTHING_WRITTEN}.", file=sys.stderr)
        return
    _require_training_packages()
    home = _make_folder(Path(folder) / f"{search.run.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    options = [*(["--hostfile", hostfile] if hostfile else []), *(["--allow-local-code"] if allow_local_code else [])]
    options += [] if search.run.cluster else ["--num-gpus", str(search.run.parallel_dims.world_size)]
    plan = TrialSettings(spec, search.overrides, options, home, steps, skip, trial_timeout)
    stopped = _run_trials(plan, search, tried)
    evidence = _build_tune_report(search, tried, steps, skip, complete=stopped is None)
    wanted = target or home / Path(spec).name
    written = _write_spec(search, evidence, wanted) if evidence.ranking.is_faster else None
    _write_or_warn(home / "evidence.json", json.dumps(evidence.to_json(), indent=2) + "\n")
    _print_tune_report(evidence, format, written)
    print(f"Trials and evidence: {format_path(home)}", file=sys.stderr)
    if stopped is not None:
        exit_with(stopped)
    if evidence.ranking.best is None:
        fix = Fix(f"read the logs in `{format_path(home)}`; `harness explain --log` names a cause")
        print_findings([Finding("MM014", "error", "no candidate could be measured", fix=fix)], None)
        exit_with(ExitCode.FINDINGS)


def _run_trials(plan: TrialSettings, search: TuneSearch, tried: list[Trial]) -> int | None:
    """Each candidate in turn, in place. The exit code where a signal has ended it, else None."""
    try:
        with _sigterm_as_interrupt():
            for number, trial in enumerate(tried):
                print(f"trial {number + 1}/{len(tried)}: {trial.candidate.title} ...", file=sys.stderr)
                tried[number] = run_trial(plan, search.run, trial.candidate, number, fastest_trial(tried))
                print(view.format_progress(tried[number], number + 1, len(tried)), file=sys.stderr)
            if rank_trials(tried).is_faster and tried[0].state == "measured":
                _rerun_baseline(plan, search, tried)
    except KeyboardInterrupt as interrupt:
        return int(interrupt.args[0]) if interrupt.args else int(ExitCode.INTERRUPTED)
    return None


def _rerun_baseline(plan: TrialSettings, search: TuneSearch, tried: list[Trial]) -> None:
    """The spec as it is once more at the end: a machine that others use too may have become faster meanwhile."""
    candidate = replace(search.candidates[0], title="the spec as it is, again")
    tried.append(Trial(candidate))
    print(f"trial {len(tried)}/{len(tried)}: {candidate.title} ...", file=sys.stderr)
    tried[-1] = run_trial(plan, search.run, candidate, len(tried) - 1, None)
    print(view.format_progress(tried[-1], len(tried), len(tried)), file=sys.stderr)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """A scheduler's SIGTERM ends the trials as Ctrl-C does: their ranks are in sessions of their own."""

    def interrupt(signum: int, _: object) -> NoReturn:
        raise KeyboardInterrupt(128 + signum)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _build_tune_report(
    search: TuneSearch, tried: list[Trial], steps: int, skip: int, *, complete: bool = True
) -> TuneReport:
    run = search.run
    return TuneReport(
        spec=search.spec,
        overrides=tuple(search.overrides),
        date=time.strftime("%Y-%m-%d %H:%M"),
        machine=search.machine,
        versions=", ".join(f"{name} {machine.package_version(name)}" for name in ("deepspeed", "torch")),
        ranks=run.parallel_dims.world_size or 1,
        global_batch=run.batch.global_batch or 0,
        steps=steps,
        skip=skip,
        trials=tuple(tried),
        ranking=rank_trials(tried),
        searched=search.num_alternatives,
        refused=search.refused,
        complete=complete,
        reference_gpu=search.stand_in,
    )


def _write_spec(search: TuneSearch, evidence: TuneReport, file: Path) -> Path | None:
    """The fastest as a spec and the evidence beside it. Where the text cannot be made, it says why."""
    best = evidence.ranking.best
    if best is None:
        return None
    text, comments = build_spec_text(search, best.candidate, file)
    why = find_mismatch(search, text, best.candidate, file)
    if why is not None:
        print(f"The fastest could not be written as a spec: {why}", file=sys.stderr)
        return None
    if not comments:
        print("note: the spec's layout could not be edited; it was written anew, without comments", file=sys.stderr)
    if not _write_or_warn(file, add_header(text, str(file), evidence)):
        return None
    _write_or_warn(file.with_name(f"{file.name}.evidence.json"), json.dumps(evidence.to_json(), indent=2) + "\n")
    return file


def _write_or_warn(file: Path, text: str) -> bool:
    """Whether it was written; where not, what was measured is still printed."""
    try:
        write_atomically(file, text)
    except OSError as error:
        print(f"{format_path(file)} could not be written: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return False
    return True


def _make_folder(path: Path) -> Path:
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder `{path}` of the trials cannot be made: {(error.strerror or str(error)).lower()}"
        _exit_with_finding(
            Finding("EN011", "error", message, fix=Fix("give `--folder` a folder that can be written")), ExitCode.USAGE
        )
    return path


def _require_training_packages() -> None:
    for finding in check_packages(("torch", "deepspeed", "transformers")):
        _exit_with_finding(finding, ExitCode.PREFLIGHT)


def _exit_with_finding(finding: Finding, code: ExitCode) -> NoReturn:
    print_findings([finding], None)
    print(f"{_NOTHING_WRITTEN}.", file=sys.stderr)
    exit_with(code)


def _print_tune_report(
    evidence: TuneReport, format: OutputFormat, written: Path | None, *, only_plan: bool = False
) -> None:
    if format is OutputFormat.json:
        print(json.dumps({**evidence.to_json(), "written": str(written) if written else None}, indent=2))
        return
    style, width = style_for(sys.stdout), shutil.get_terminal_size((120, 24)).columns
    print(view.render_dry_run(evidence, style, width) if only_plan else view.render_tune_report(evidence, style, width))
    if written is not None:
        print(f"Wrote {format_path(written)}\nNext: harness launch {shlex.quote(format_path(written))}")
