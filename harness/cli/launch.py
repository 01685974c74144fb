"""`harness launch`: from a run spec to a trained model, by the real `deepspeed` launcher."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.asking import hosts_are_well, network_of
from harness.cli.common import Checked, check_file, exit_with, print_findings, stop_on_errors
from harness.cli.options import (
    ExcludeOption,
    HostfileOption,
    HostsOption,
    IncludeOption,
    NumGpusOption,
    NumNodesOption,
    Progress,
    SetOption,
    SlurmOption,
    SpecArgument,
)
from harness.cli.submitting import submit_job
from harness.diagnosis.values import Diagnosis
from harness.errors import Exit, Refused
from harness.facts.survey import Survey
from harness.findings import Finding, Fix
from harness.launching.ahead import Ahead
from harness.launching.build import extensions_root, is_ready
from harness.launching.debugging import with_profile
from harness.launching.execute import Outcome, execute, sample_of
from harness.launching.explaining import diagnose_run
from harness.launching.here import Here, look_here, unread_env_files
from harness.launching.local_code import allowed_code
from harness.launching.plan import LaunchPlan, Target, hostfile_text, is_local, make_plan
from harness.launching.refusals import INSTALLABLE, refusals
from harness.launching.resuming import resume_from
from harness.launching.rundir import new_run_dir, rewrite, write_run_dir
from harness.launching.slurm import outside
from harness.plan.choices.choosing import with_choices
from harness.plan.plan import make_plan as plan_of_run
from harness.plan.run import Run
from harness.records.record import read_record
from harness.render import DSConfig, render
from harness.spec.host_selection import Selection
from harness.swap_folders import with_own_folders
from harness.views import diagnosis
from harness.views import launch as view
from harness.views.machine_readable import report_json
from harness.views.screen import Screen, mode_of
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_NOTHING = "Nothing was written or started"


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


@dataclass(frozen=True)
class Prepared:
    """A launch that nothing speaks against."""

    run: Run
    here: Here
    plan: LaunchPlan
    target: Target
    survey: Survey | None = None
    ahead: Ahead | None = None


def launch(
    spec: SpecArgument,
    overrides: SetOption = None,
    hostfile: HostfileOption = None,
    hosts: HostsOption = None,
    slurm: SlurmOption = False,
    include: IncludeOption = "",
    exclude: ExcludeOption = "",
    num_nodes: NumNodesOption = None,
    num_gpus: NumGpusOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show files, environment, command and ranks; do nothing.")
    ] = False,
    resume: Annotated[
        str,
        typer.Option(
            metavar="auto|never|PATH",
            help="Go on from the newest complete checkpoint of this spec (`auto`; from the start if there is none) or "
            "from a run directory or checkpoint. Every byte is verified first; a new run directory is made.",
        ),
    ] = "never",
    allow_change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Go on although this key of the spec, or section, is not what the checkpoint was trained with.",
        ),
    ] = None,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Start again from the last complete checkpoint so many times when a rank, a node or the launcher died "
            "or the run hung (`launch.max_restarts`).",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="steps=A-B[,flops][,comms][,ranks=R+R]",
            help="Record these steps with torch's profiler: a trace and a table of time by kind, in the run's folder "
            "`profile`. `flops`, `comms`: DeepSpeed's FLOPs profiler and communication log too, which slow the run.",
        ),
    ] = None,
    debug_distributed: Annotated[
        bool, typer.Option("--debug-distributed", help="Have torch and NCCL check and tell each collective; slow.")
    ] = False,
    allow_local_code: Annotated[
        bool, typer.Option("--allow-local-code", help="Run the Python file that `plugins.file` of the spec names.")
    ] = False,
    format: Annotated[Format, typer.Option("--format", help="How the plan or the result is printed.")] = Format.text,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="With `--slurm` outside a job: an option of sbatch, such as `--nodes=2`."),
    ] = None,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Do not ask the hosts of a hostfile first what they have.")
    ] = False,
    progress: Annotated[
        Progress,
        typer.Option(help="What is shown meanwhile, on stderr: a bar, lines, JSON lines, or trouble alone (`quiet`)."),
    ] = Progress.auto,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The same as `--progress quiet`.")] = False,
) -> None:
    """Check, plan and render a run spec, then train it with the `deepspeed` launcher and watch over the ranks.

    Ctrl-C, SIGTERM and SIGUSR1 let the ranks finish their step and save; a second signal ends them at once. After
    SIGUSR1, a scheduler's notice of a pre-emption, they may take as long as the scheduler lets them. A signal to a rank
    or to the `deepspeed` launcher asks for the same.

    Exit codes: 0 completed, 1 errors in the spec, 4 this machine cannot run it, 5 the engine has not what the spec asks
    for (`launch.attest`), 124 hung, 130 stopped by Ctrl-C or the file `stop`, 138 by SIGUSR1, 143 by SIGTERM, else that
    of the first rank that failed.

    Example: harness launch ds_configs/demo.yaml --dry-run
    """
    if allow_change and resume == "never":
        message = "goes with `--resume`: a run that starts anew may change anything"
        raise typer.BadParameter(message, param_hint="--allow-change")
    changes = [*(overrides or ()), *([] if max_restarts is None else [f"launch.max_restarts={max_restarts}"])]
    changes += [*_profile(profile), *(["telemetry.debug_distributed=true"] if debug_distributed else [])]
    if sbatch and not (slurm and outside(os.environ)):
        raise typer.BadParameter("goes with `--slurm`, where no job has begun yet", param_hint="--sbatch")
    if slurm and outside(os.environ):
        submit_job(spec, changes, sbatch or (), resume, dry_run=dry_run)
        return
    going_on = (resume, tuple(allow_change or ()))
    ask = not (dry_run or no_preflight)
    chosen = Selection(hosts, slurm, include, exclude, num_nodes, num_gpus)
    more = {"dry_run": dry_run, "code": allow_local_code, "ask": ask}
    prepared = prepare(spec, changes, hostfile, going_on, chosen=chosen, **more)
    if dry_run:
        _show(prepared, format)
        return
    write_run_dir(prepared.plan)
    mode = mode_of("quiet" if quiet else progress.value)
    saves = prepared.run.spec.checkpoint
    screen = Screen(mode, saves.save_steps, save_at_end=saves.save_at_end)
    try:
        fewer = partial(without_hosts, prepared, spec, changes)
        outcome = execute(prepared.plan, prepared.run, prepared.here.scripts, screen, fewer, prepared.ahead)
    except Refused as refused:
        print_findings(refused.findings, None)
        print(
            f"No rank was started. The run directory {view.relative(prepared.plan.run_dir)} is kept.", file=sys.stderr
        )
        exit_with(refused.code)
    finally:
        screen.close()
    _tell(outcome, format, list(screen.last_lines) if mode == "quiet" else [])
    exit_with(outcome.verdict.code)


def _profile(text: str | None) -> list[str]:
    """`--profile` as changes to the spec. Raises BadParameter."""
    changes = []
    for part in text.split(",") if text else ():
        key, _, value = part.partition("=")
        first, _, last = value.partition("-")
        if (
            key == "steps"
            and first.isdigit()
            and int(first)
            and (not last or (last.isdigit() and int(last) >= int(first)))
        ):
            changes.append(f"telemetry.profile_steps='{value}'")
        elif key == "ranks" and all(rank.isdigit() for rank in value.split("+")):
            changes.append(f"telemetry.profile_ranks=[{value.replace('+', ',')}]")
        elif part in ("flops", "comms"):
            changes.append(f"telemetry.{'flops_profiler' if part == 'flops' else 'comms_logger'}=true")
        else:
            message = f"`{part}` is not `steps=A-B`, `ranks=R+R`, `flops` or `comms`"
            raise typer.BadParameter(message, param_hint="--profile")
    return changes


def prepare(
    spec: str,
    overrides: Sequence[str],
    hostfile: str | None,
    resume: tuple[str, tuple[str, ...]],
    *,
    dry_run: bool,
    code: bool = False,
    ask: bool = False,
    chosen: Selection | None = None,
) -> Prepared:
    """Everything before anything is written: the checked spec and its plan. `resume` is what `--resume` and
    `--allow-change` say, `code` is `--allow-local-code`; with `ask` other hosts are asked what they have. Prints what
    speaks against it and exits. `chosen` says more about who takes part than the hostfile.
    """
    asked, allowed = resume
    checked = check_file(spec, overrides=overrides, hostfile=hostfile, launching=True, selection=chosen)
    if checked.run is not None and checked.run.cluster is None and chosen is not None and chosen.num_gpus is not None:
        overrides = [*overrides, f"launch.num_gpus={chosen.num_gpus}"]
        checked = check_file(spec, overrides=overrides, launching=True)
    here = look_here(h.name for h in checked.run.cluster.hosts) if checked.run and checked.run.cluster else look_here()
    if checked.run is not None and checked.run.degrees.world is None:
        world = here.num_accelerators or 1
        checked = check_file(spec, overrides=overrides, hostfile=hostfile, world_size=world, launching=True)
    run = stop_on_errors(checked, _NOTHING)
    output_dir = here.folder / run.spec.launch.output_dir
    run_dir = new_run_dir(output_dir, run.name)
    try:
        _refuse([*_not_a_run(run, spec), *refusals(run, here, run_dir)], dry_run=dry_run)
        sha256 = allowed_code(run, here.folder, allowed=code)
        found = resume_from(asked, output_dir, run.name, run.spec.model_dump(mode="json"), allowed, _tell_resume)
    except Refused as refused:
        print_findings(refused.findings, checked.source)
        print(f"{_NOTHING}.", file=sys.stderr)
        exit_with(refused.code)
    if asked != "never":
        origin = found.checkpoint
        _tell_resume(f"going on from {view.relative(origin)}" if origin else "no earlier checkpoint, starting anew")
    _say_what_is_not_read(run, here)
    run = with_choices(run, here.folder)
    config = DSConfig(with_profile(with_own_folders(render(run).config, run_dir), run_dir), {})
    documents = _documents(checked, run, config.text, here, overrides)
    target = Target(run_dir, documents, found.checkpoint, allowed, sha256)
    survey = ahead = None
    if ask and not is_local(run, here):
        ahead = Ahead.start(here, run.spec.launch.env)
        survey = hosts_are_well(checked, run, here, config.config)
    plan = make_plan(run, config.config, here, target, network_of(survey))
    return Prepared(run, here, plan, target, survey, ahead)


def without_hosts(
    prepared: Prepared, spec: str, overrides: Sequence[str], lost: Collection[str]
) -> tuple[LaunchPlan, Run] | str:
    """The same run on the hosts that are left, written to its run directory; or why that cannot be.

    The global batch stays what it was: accumulation makes up for the ranks that are gone.
    """
    old, run_dir = prepared.run, prepared.plan.run_dir
    hosts = [h for h in (old.cluster.hosts if old.cluster else ()) if h.name not in lost]
    if any(host.devices is not None for host in hosts):
        return "its devices were chosen one by one"
    batch = [
        f"train.global_batch_size={old.batch.global_batch}",
        f"train.per_device_train_batch_size={old.batch.per_device}",
        "train.gradient_accumulation_steps=null",
    ]
    hostfile = run_dir / "hostfile.left"
    hostfile.write_text("".join(f"{h.name} slots={h.slots}\n" for h in hosts), encoding="utf-8")
    changes = [*overrides, *batch]
    checked = check_file(spec, overrides=changes, hostfile=str(hostfile), launching=True)
    hostfile.unlink()
    if checked.run is None or not checked.report.ok:
        return next((f.message for f in checked.report.findings if f.is_error), "the spec cannot be read any more")
    here = prepared.here
    run = with_choices(checked.run, here.folder)
    config = DSConfig(with_own_folders(render(run).config, run_dir), {})
    same = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    allowed = (*prepared.target.allowed, *(f"train.{key}" for key in same))  # written otherwise, the batch is the same
    documents = _documents(checked, run, config.text, here, changes)
    target = replace(prepared.target, documents=documents, allowed=allowed)
    network = network_of(prepared.survey.without(lost) if prepared.survey else None)
    plan = make_plan(run, config.config, here, target, network)
    rewrite(plan)
    return plan, run


def _tell_resume(text: str) -> None:
    print(text, file=sys.stderr)


def _say_what_is_not_read(run: Run, here: Here) -> None:
    if not is_local(run, here):
        for file in unread_env_files(here.folder):
            print(
                f"note: {file} is not read: its variables do not reach the hosts, put them into `launch.env`",
                file=sys.stderr,
            )


def _refuse(found: list[Finding], *, dry_run: bool) -> None:
    """Raise what speaks against the launch. For a look at the plan, programs that are missing here do not matter."""
    lacking = [f for f in found if dry_run and f.gate in INSTALLABLE]
    if lacking:
        print_findings([replace(f, severity="warning") for f in lacking], None)
    against = [f for f in found if f not in lacking]
    if against:
        raise Refused(against, Exit.FINDINGS if against[0].gate.startswith("SP") else Exit.PREFLIGHT)


def _documents(checked: Checked, run: Run, config: str, here: Here, overrides: Sequence[str]) -> dict[str, str]:
    """The files of the run directory that are not about launching."""
    expected = plan_of_run(run, here.folder, None if here.num_accelerators else "cpu")
    documents = {
        "spec.yaml": checked.source.text if checked.source else "",
        "spec.resolved.json": json.dumps(run.to_json(), indent=2) + "\n",
        "ds_config.json": config,
        "plan.json": json.dumps(expected.to_json(), indent=2) + "\n",
        "findings.json": json.dumps(report_json(checked.report), indent=2) + "\n",
    }
    if overrides:
        documents["overrides.txt"] = "".join(f"{text}\n" for text in overrides)
    if run.cluster is not None:
        documents["hostfile"] = hostfile_text(run.cluster)
    return documents


def _not_a_run(run: Run, file: str) -> list[Finding]:
    if run.kind == "spec":
        return []
    message = f"`{file}` is a DeepSpeed JSON, which says nothing about model and data"
    return [
        Finding("SP020", "error", message, fix=Fix("write a run spec; `harness schema` and `ds_configs/` show how"))
    ]


def _show(prepared: Prepared, format: Format) -> None:
    plan = prepared.plan
    if format is Format.json:
        print(json.dumps(plan.to_json(), indent=2))
        print(f"{_NOTHING}.", file=sys.stderr)
        return
    environ = plan.environment(prepared.here.environ)
    ready = is_ready(plan.ops, extensions_root(environ), environ)
    print(view.dry_run(plan, prepared.run, ready, style_for(sys.stdout)))


def _tell(outcome: Outcome, format: Format, last_lines: list[str]) -> None:
    report = _report(outcome) if outcome.trained else None
    record = read_record(outcome.plan.run_dir)
    if outcome.verdict.state == "failed" and last_lines:
        print("\n".join(last_lines), file=sys.stderr)
    found = _diagnosis(outcome)
    if format is Format.json:
        print(view.as_json(outcome, record, report, diagnosis.as_dict(found) if found else None))
    else:
        print(view.summary(outcome, record, sample_of(outcome.plan.run_dir), report, style_for(sys.stdout)))
    if found and format is Format.text:
        width = min(shutil.get_terminal_size((120, 24)).columns, 120)
        print(f"\nWhat the log tells (harness explain --log {view.relative(outcome.plan.run_dir)})")
        print(diagnosis.as_text(found, style_for(sys.stdout), width))


def _diagnosis(outcome: Outcome) -> Diagnosis | None:
    """What the log of a failed run tells; nothing where a rank has named its own mistake, or the log has nothing."""
    if outcome.verdict.state != "failed" or outcome.verdict.refused or not outcome.trained:
        return None
    try:
        found = diagnose_run(outcome.plan.run_dir)
    except (OSError, Refused):
        return None
    return found if found.state == "failed" else None


def _report(outcome: Outcome) -> Path | None:
    """A report that cannot be written takes nothing away from a training that is complete."""
    from harness.views import report

    try:
        return report.write(outcome.plan.run_dir)
    except OSError as error:
        print(f"the report could not be written: {error}", file=sys.stderr)
    except Exception as error:  # our fault, and no reason to call the training failed
        print(f"the report could not be made, please tell us: {type(error).__name__}: {error}", file=sys.stderr)
    return None
