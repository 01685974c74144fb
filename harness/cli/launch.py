"""`harness launch`: from a run spec to a trained model, by the real `deepspeed` launcher."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import exit_with, print_findings
from harness.cli.options import (
    AllowCodeOption,
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
from harness.cli.preparing import NOTHING, Prepared, prepare, without_hosts
from harness.cli.submitting import submit_job
from harness.diagnosis.values import Diagnosis
from harness.errors import Refused
from harness.facts.compiled_ops import extensions_root
from harness.launching.apart import Apart, follow
from harness.launching.build import is_ready
from harness.launching.execute import Outcome, execute, sample_of
from harness.launching.explaining import diagnose_run
from harness.launching.rundir import write_run_dir
from harness.launching.slurm import outside
from harness.records.record import read_record
from harness.spec.host_selection import Selection
from harness.views import diagnosis
from harness.views import launch as view
from harness.views.screen import Screen, mode_of
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


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
    allow_local_code: AllowCodeOption = False,
    format: Annotated[Format, typer.Option("--format", help="How the plan or the result is printed.")] = Format.text,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="With `--slurm` outside a job: an option of sbatch, such as `--nodes=2`."),
    ] = None,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Do not ask the hosts of a hostfile first what they have.")
    ] = False,
    no_ssh: Annotated[
        bool,
        typer.Option(
            "--no-ssh",
            help="Start the ranks of this host alone: the same command runs on every host of the hostfile, such as in "
            "the pods of a job, with the same `--run-id` and a run directory that all see.",
        ),
    ] = False,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", metavar="ID", help="With `--no-ssh`: what this job is called on all hosts."),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="With `--no-ssh`: which host this is, from 0, where its name does not tell."
        ),
    ] = None,
    master_addr: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With `--no-ssh`: how all reach the first host, if not by its name."),
    ] = None,
    progress: Annotated[
        Progress,
        typer.Option(help="What is shown meanwhile, on stderr: a bar, lines, JSON lines, or trouble alone (`quiet`)."),
    ] = Progress.auto,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The same as `--progress quiet`.")] = False,
    tee: Annotated[
        bool, typer.Option("--tee", help="Show what every rank prints, marked by its rank, not only rank 0's.")
    ] = False,
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
        submit_job(spec, changes, sbatch or (), resume, dry_run=dry_run, allow_code=allow_local_code)
        return
    apart = _apart(no_ssh=no_ssh, run_id=run_id, node_rank=node_rank, master_addr=master_addr)
    going_on = (resume, tuple(allow_change or ()))
    ask = not (dry_run or no_preflight)
    chosen = Selection(hosts, slurm, include, exclude, num_nodes, num_gpus)
    more = {"dry_run": dry_run, "code": allow_local_code, "ask": ask}
    prepared = prepare(spec, changes, hostfile, going_on, chosen=chosen, apart=apart, **more)
    if dry_run:
        _show(prepared, format)
        return
    if apart is None or prepared.plan.leads:
        write_run_dir(prepared.plan)
    else:
        followed = follow(prepared.plan, apart.wait_seconds, lambda text: print(text, file=sys.stderr))
        prepared = replace(prepared, plan=followed)
    mode = mode_of("quiet" if quiet else progress.value)
    saves = prepared.run.spec.checkpoint
    screen = Screen(mode, saves.save_steps, save_at_end=saves.save_at_end, tee=tee)
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


def _apart(*, no_ssh: bool, run_id: str | None, node_rank: int | None, master_addr: str | None) -> Apart | None:
    """What the options of `--no-ssh` say. Raises BadParameter."""
    given = {"--run-id": run_id, "--node-rank": node_rank, "--master-addr": master_addr}
    if not no_ssh:
        odd = next((name for name, value in given.items() if value is not None), None)
        if odd:
            raise typer.BadParameter("goes with `--no-ssh`", param_hint=odd)
        return None
    if run_id is None:
        message = "is needed with `--no-ssh`: one name for the job on all hosts, such as the scheduler's number of it"
        raise typer.BadParameter(message, param_hint="--run-id")
    return Apart(run_id, node_rank, master_addr)


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


def _show(prepared: Prepared, format: Format) -> None:
    plan = prepared.plan
    if format is Format.json:
        print(json.dumps(plan.to_json(), indent=2))
        print(f"{NOTHING}.", file=sys.stderr)
        return
    environ = plan.environment(prepared.here.environ)
    ready = is_ready(plan.ops, extensions_root(environ), environ)
    print(view.dry_run(plan, prepared.run, ready, style_for(sys.stdout)))


def _tell(outcome: Outcome, format: Format, last_lines: list[str]) -> None:
    if not outcome.plan.leads:
        print(view.of_one_host(outcome, style_for(sys.stdout)))
        return
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
