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

from harness.cli.console import exit_with, print_findings
from harness.cli.launch_setup import NOTHING_WRITTEN, LaunchSetup, prepare, replan_without_hosts
from harness.cli.options import (
    AllowCodeOption,
    ExcludeOption,
    HostfileOption,
    HostsOption,
    IncludeOption,
    NumGpusOption,
    NumNodesOption,
    ProgressMode,
    SetOption,
    SlurmOption,
    SpecArgument,
)
from harness.cli.slurm_submission import submit_launch
from harness.diagnosis.diagnosis_types import Diagnosis
from harness.diagnosis.run_diagnosis import diagnose_run
from harness.errors import UserError
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.launching.ops.build_cache import ops_are_built
from harness.launching.setup.no_ssh import PerNodeLaunch, wait_for_leader
from harness.launching.setup.run_dir import write_run_dir
from harness.launching.setup.slurm import is_outside_job
from harness.launching.supervise.export_step import read_sample
from harness.launching.supervise.launch_runner import LaunchResult, run_launch
from harness.run_records.run_record import read_run_record
from harness.spec.host_selection import HostSelection
from harness.views import launch as view
from harness.views import log_diagnosis
from harness.views.screen import Screen, resolve_mode
from harness.views.style import style_for

NO_ARGS_IS_HELP = True


class OutputFormat(StrEnum):
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
    format: Annotated[
        OutputFormat, typer.Option("--format", help="How the plan or the result is printed.")
    ] = OutputFormat.text,
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
        ProgressMode,
        typer.Option(help="What is shown meanwhile, on stderr: a bar, lines, JSON lines, or trouble alone (`quiet`)."),
    ] = ProgressMode.auto,
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
    for (`launch.engine_checks`), 124 hung, 130 stopped by Ctrl-C or the file `stop`, 138 by SIGUSR1, 143 by SIGTERM, else that
    of the first rank that failed.

    Example: harness launch ds_configs/demo.yaml --dry-run
    """
    if allow_change and resume == "never":
        message = "goes with `--resume`: a run that starts anew may change anything"
        raise typer.BadParameter(message, param_hint="--allow-change")
    changes = [*(overrides or ()), *([] if max_restarts is None else [f"launch.max_restarts={max_restarts}"])]
    changes += [*_parse_profile(profile), *(["telemetry.debug_distributed=true"] if debug_distributed else [])]
    if sbatch and not (slurm and is_outside_job(os.environ)):
        raise typer.BadParameter("goes with `--slurm`, where no job has begun yet", param_hint="--sbatch")
    if slurm and is_outside_job(os.environ):
        submit_launch(spec, changes, sbatch or (), resume, dry_run=dry_run, allow_code=allow_local_code)
        return
    apart = _parse_no_ssh(no_ssh=no_ssh, run_id=run_id, node_rank=node_rank, master_addr=master_addr)
    going_on = (resume, tuple(allow_change or ()))
    ask = not (dry_run or no_preflight)
    chosen = HostSelection(hosts, slurm, include, exclude, num_nodes, num_gpus)
    more = {"dry_run": dry_run, "code": allow_local_code, "ask": ask}
    prepared = prepare(spec, changes, hostfile, going_on, host_selection=chosen, per_node=apart, **more)
    if dry_run:
        _print_dry_run(prepared, format)
        return
    if apart is None or prepared.plan.is_leader:
        write_run_dir(prepared.plan)
    else:
        followed = wait_for_leader(prepared.plan, apart.wait_seconds, lambda text: print(text, file=sys.stderr))
        prepared = replace(prepared, plan=followed)
    mode = resolve_mode("quiet" if quiet else progress.value)
    saves = prepared.run.spec.checkpoint
    screen = Screen(mode, saves.save_steps, save_at_end=saves.save_at_end, tee=tee)
    try:
        fewer = partial(replan_without_hosts, prepared, spec, changes)
        outcome = run_launch(
            prepared.plan, prepared.run, prepared.local_host.scripts, screen, fewer, prepared.prewarmed_launcher
        )
    except UserError as refused:
        print_findings(refused.findings, None)
        print(
            f"No rank was started. The run directory {view.format_path(prepared.plan.run_dir)} is kept.",
            file=sys.stderr,
        )
        exit_with(refused.code)
    finally:
        screen.close()
    _print_result(outcome, format, list(screen.last_lines) if mode == "quiet" else [])
    exit_with(outcome.verdict.code)


def _parse_no_ssh(
    *, no_ssh: bool, run_id: str | None, node_rank: int | None, master_addr: str | None
) -> PerNodeLaunch | None:
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
    return PerNodeLaunch(run_id, node_rank, master_addr)


def _parse_profile(text: str | None) -> list[str]:
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


def _print_dry_run(prepared: LaunchSetup, format: OutputFormat) -> None:
    plan = prepared.plan
    if format is OutputFormat.json:
        print(json.dumps(plan.to_json(), indent=2))
        print(f"{NOTHING_WRITTEN}.", file=sys.stderr)
        return
    environ = plan.environment(prepared.local_host.environ)
    ready = ops_are_built(plan.ops, torch_extensions_dir(environ), environ)
    print(view.render_dry_run(plan, prepared.run, ready, style_for(sys.stdout)))


def _print_result(outcome: LaunchResult, format: OutputFormat, last_lines: list[str]) -> None:
    if not outcome.plan.is_leader:
        print(view.render_node_summary(outcome, style_for(sys.stdout)))
        return
    report = _write_report(outcome) if outcome.ranks_started else None
    record = read_run_record(outcome.plan.run_dir)
    if outcome.verdict.state == "failed" and last_lines:
        print("\n".join(last_lines), file=sys.stderr)
    found = _diagnose_failure(outcome)
    if format is OutputFormat.json:
        print(view.launch_as_json(outcome, record, report, log_diagnosis.diagnosis_as_dict(found) if found else None))
    else:
        print(view.render_summary(outcome, record, read_sample(outcome.plan.run_dir), report, style_for(sys.stdout)))
    if found and format is OutputFormat.text:
        width = min(shutil.get_terminal_size((120, 24)).columns, 120)
        print(f"\nWhat the log tells (harness explain --log {view.format_path(outcome.plan.run_dir)})")
        print(log_diagnosis.render_diagnosis(found, style_for(sys.stdout), width))


def _diagnose_failure(outcome: LaunchResult) -> Diagnosis | None:
    """What the log of a failed run tells; nothing where a rank has named its own mistake, or the log has nothing."""
    if outcome.verdict.state != "failed" or outcome.verdict.refused or not outcome.ranks_started:
        return None
    try:
        found = diagnose_run(outcome.plan.run_dir)
    except (OSError, UserError):
        return None
    return found if found.state == "failed" else None


def _write_report(outcome: LaunchResult) -> Path | None:
    """A report that cannot be written takes nothing away from a training that is complete."""
    from harness.views import report

    try:
        return report.write_report(outcome.plan.run_dir)
    except OSError as error:
        print(f"the report could not be written: {error}", file=sys.stderr)
    except Exception as error:  # our fault, and no reason to call the training failed
        print(f"the report could not be made, please tell us: {type(error).__name__}: {error}", file=sys.stderr)
    return None
