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

from harness.cli.common import exit_with, print_findings
from harness.cli.options import AllowCodeOption, HostfileOption, SetOption, SpecArgument
from harness.cli.trying import Search, looked_up, text_of, verified
from harness.errors import Exit
from harness.facts import machine
from harness.files import write_atomically
from harness.findings import Finding, Fix
from harness.launching.trying import Plan, try_out
from harness.tuning.evidence import Evidence
from harness.tuning.trials import Trial, best_of, left_out, rank
from harness.tuning.writing import with_head
from harness.views import tune as view
from harness.views.launch import relative
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_NOTHING = "Nothing was written or started"


class Format(StrEnum):
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
    format: Annotated[Format, typer.Option("--format", help="How the result is printed.")] = Format.text,
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
    search = looked_up(spec, list(overrides or ()), hostfile, trials, allow_code=allow_local_code)
    skip = left_out(steps)
    tried = [Trial(candidate) for candidate in search.candidates]
    if dry_run:
        _print(_evidence(search, tried, steps, skip), format, None, only_plan=True)
        print(f"{_NOTHING}.", file=sys.stderr)
        return
    _refuse_without_training()
    home = _folder(Path(folder) / f"{search.run.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    options = [*(["--hostfile", hostfile] if hostfile else []), *(["--allow-local-code"] if allow_local_code else [])]
    options += [] if search.run.cluster else ["--num-gpus", str(search.run.degrees.world)]
    plan = Plan(spec, search.overrides, options, home, steps, skip, trial_timeout)
    stopped = _try_all(plan, search, tried)
    evidence = _evidence(search, tried, steps, skip, complete=stopped is None)
    wanted = target or home / Path(spec).name
    written = _write(search, evidence, wanted) if evidence.ranking.faster else None
    _save(home / "evidence.json", json.dumps(evidence.to_json(), indent=2) + "\n")
    _print(evidence, format, written)
    print(f"Trials and evidence: {relative(home)}", file=sys.stderr)
    if stopped is not None:
        exit_with(stopped)
    if evidence.ranking.best is None:
        fix = Fix(f"read the logs in `{relative(home)}`; `harness explain --log` names a cause")
        print_findings([Finding("MM014", "error", "no candidate could be measured", fix=fix)], None)
        exit_with(Exit.FINDINGS)


def _try_all(plan: Plan, search: Search, tried: list[Trial]) -> int | None:
    """Each candidate in turn, in place. The exit code where a signal has ended it, else None."""
    try:
        with _sigterm_as_interrupt():
            for number, trial in enumerate(tried):
                print(f"trial {number + 1}/{len(tried)}: {trial.candidate.title} ...", file=sys.stderr)
                tried[number] = try_out(plan, search.run, trial.candidate, number, best_of(tried))
                print(view.progress(tried[number], number + 1, len(tried)), file=sys.stderr)
            if rank(tried).faster and tried[0].state == "measured":
                _again(plan, search, tried)
    except KeyboardInterrupt as interrupt:
        return int(interrupt.args[0]) if interrupt.args else int(Exit.INTERRUPTED)
    return None


def _again(plan: Plan, search: Search, tried: list[Trial]) -> None:
    """The spec as it is once more at the end: a machine that others use too may have become faster meanwhile."""
    candidate = replace(search.candidates[0], title="the spec as it is, again")
    tried.append(Trial(candidate))
    print(f"trial {len(tried)}/{len(tried)}: {candidate.title} ...", file=sys.stderr)
    tried[-1] = try_out(plan, search.run, candidate, len(tried) - 1, None)
    print(view.progress(tried[-1], len(tried), len(tried)), file=sys.stderr)


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


def _evidence(search: Search, tried: list[Trial], steps: int, skip: int, *, complete: bool = True) -> Evidence:
    run = search.run
    return Evidence(
        spec=search.spec,
        overrides=tuple(search.overrides),
        date=time.strftime("%Y-%m-%d %H:%M"),
        machine=search.machine,
        versions=", ".join(f"{name} {machine.installed(name)}" for name in ("deepspeed", "torch")),
        ranks=run.degrees.world or 1,
        global_batch=run.batch.global_batch or 0,
        steps=steps,
        skip=skip,
        trials=tuple(tried),
        ranking=rank(tried),
        searched=search.searched,
        refused=search.refused,
        complete=complete,
        stand_in=search.stand_in,
    )


def _write(search: Search, evidence: Evidence, file: Path) -> Path | None:
    """The fastest as a spec and the evidence beside it. Where the text cannot be made, it says why."""
    best = evidence.ranking.best
    if best is None:
        return None
    text, comments = text_of(search, best.candidate, file)
    why = verified(search, text, best.candidate, file)
    if why is not None:
        print(f"The fastest could not be written as a spec: {why}", file=sys.stderr)
        return None
    if not comments:
        print("note: the spec's layout could not be edited; it was written anew, without comments", file=sys.stderr)
    if not _save(file, with_head(text, str(file), evidence)):
        return None
    _save(file.with_name(f"{file.name}.evidence.json"), json.dumps(evidence.to_json(), indent=2) + "\n")
    return file


def _save(file: Path, text: str) -> bool:
    """Whether it was written; where not, what was measured is still printed."""
    try:
        write_atomically(file, text)
    except OSError as error:
        print(f"{relative(file)} could not be written: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return False
    return True


def _folder(path: Path) -> Path:
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder `{path}` of the trials cannot be made: {(error.strerror or str(error)).lower()}"
        _end(Finding("EN011", "error", message, fix=Fix("give `--folder` a folder that can be written")), Exit.USAGE)
    return path


def _refuse_without_training() -> None:
    missing = [name for name in ("torch", "deepspeed", "transformers") if machine.installed(name) is None]
    if missing:
        names = " and ".join(f"`{name}`" for name in missing)
        fix = Fix("install the training extra there: pip install 'deepspeed-harness[train]'")
        _end(Finding("EN002", "error", f"{names} cannot be found by {sys.executable}", fix=fix), Exit.PREFLIGHT)


def _end(finding: Finding, code: Exit) -> NoReturn:
    print_findings([finding], None)
    print(f"{_NOTHING}.", file=sys.stderr)
    exit_with(code)


def _print(evidence: Evidence, format: Format, written: Path | None, *, only_plan: bool = False) -> None:
    if format is Format.json:
        print(json.dumps({**evidence.to_json(), "written": str(written) if written else None}, indent=2))
        return
    style, width = style_for(sys.stdout), shutil.get_terminal_size((120, 24)).columns
    print(view.dry_run(evidence, style, width) if only_plan else view.text(evidence, style, width))
    if written is not None:
        print(f"Wrote {relative(written)}\nNext: harness launch {shlex.quote(relative(written))}")
