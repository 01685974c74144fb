# SPDX-License-Identifier: Apache-2.0
"""`harness launch`: from a run spec to a trained model, by the real `deepspeed` launcher."""

from __future__ import annotations

import os

import typer

from harness.cli import kubernetes_options, no_ssh_options, slurm_options
from harness.cli import launch_options as options
from harness.cli.console import ConsoleLog, exit_rejected, exit_with, log_to_stderr
from harness.cli.launch_option_checks import check_allowed_changes, parse_progress, parse_script
from harness.cli.launch_output import print_complete, print_dry_run, print_jobset, print_result, submit_and_print
from harness.cli.no_ssh_options import parse_no_ssh
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
    spell_out_arguments,
)
from harness.cli.output_format import OutputFormat
from harness.launching.setup.jobset_checks import JobSetRequest
from harness.launching.setup.launch_request import LaunchRejected, LaunchRequest, RunComplete
from harness.launching.setup.prepare import prepare
from harness.launching.setup.slurm import SlurmJob, is_outside_job
from harness.launching.supervise.launch_runner import run_setup
from harness.spec.host_selection import HostSelection
from harness.views.screen import Screen, resolve_mode

NO_ARGS_IS_HELP = True


def launch(
    ctx: typer.Context,
    spec: SpecArgument,
    overrides: SetOption = None,
    hostfile: HostfileOption = None,
    hosts: HostsOption = None,
    slurm: SlurmOption = False,
    include: IncludeOption = "",
    exclude: ExcludeOption = "",
    num_nodes: NumNodesOption = None,
    num_gpus: NumGpusOption = None,
    sbatch: slurm_options.SbatchOption = None,
    container: slurm_options.ContainerOption = None,
    container_mount: slurm_options.ContainerMountOption = None,
    no_preflight: options.NoPreflightOption = False,
    no_ssh: no_ssh_options.NoSshOption = False,
    run_id: no_ssh_options.RunIdOption = None,
    node_rank: no_ssh_options.NodeRankOption = None,
    master_addr: no_ssh_options.MasterAddrOption = None,
    kubernetes: kubernetes_options.KubernetesOption = False,
    image: kubernetes_options.ImageOption = None,  # noqa: ARG001  (`parse_kubernetes` reads it)
    namespace: kubernetes_options.NamespaceOption = None,  # noqa: ARG001  (`parse_kubernetes` reads it)
    pvc: kubernetes_options.PvcOption = None,  # noqa: ARG001  (`parse_kubernetes` reads it)
    workdir: kubernetes_options.WorkdirOption = None,  # noqa: ARG001  (`parse_kubernetes` reads it)
    env_from: kubernetes_options.EnvFromOption = None,  # noqa: ARG001  (`parse_kubernetes` reads it)
    nvme_class: kubernetes_options.NvmeClassOption = None,  # noqa: ARG001  (`parse_kubernetes` reads it)
    pod_patch: kubernetes_options.PodPatchOption = None,  # noqa: ARG001  (`parse_kubernetes` reads it)
    output: kubernetes_options.OutputOption = None,
    script: options.ScriptOption = None,
    dry_run: options.DryRunOption = False,
    resume: options.ResumeOption = "never",
    allow_change: options.AllowChangeOption = None,
    max_restarts: options.MaxRestartsOption = None,
    profile: options.ProfileOption = None,
    debug_distributed: options.DebugDistributedOption = False,
    allow_local_code: AllowCodeOption = False,
    format: options.FormatOption = OutputFormat.text,
    progress: options.ProgressOption = ProgressMode.auto,
    quiet: options.QuietOption = False,
    tee: options.TeeOption = False,
    notify: options.NotifyOption = None,
) -> None:
    """Check, plan and render a run spec, then train it with the `deepspeed` launcher and supervise the ranks.

    Ctrl-C, SIGTERM and SIGUSR1 let the ranks finish their step and save; a second signal kills them. After SIGUSR1, a
    scheduler's notice of preemption, only the scheduler limits the time. A signal to a rank or the launcher counts.

    Exit codes: 0 completed, 1 errors in the spec, 4 this machine cannot run it, 5 engine does not match the spec
    (`launch.engine_checks`), 124 hung, 130 stopped by Ctrl-C or the file `stop`, 138 by SIGUSR1, 143 by SIGTERM,
    else that of the first rank that failed.

    Example: harness launch ds_configs/demo.yaml --dry-run
    """
    check_allowed_changes(allow_change or (), resume)
    mode = parse_progress(progress, quiet=quiet, tee=tee)
    changes = [*(overrides or ()), *([] if max_restarts is None else [f"launch.max_restarts={max_restarts}"])]
    changes += [*options.parse_profile(profile), *(["telemetry.debug_distributed=true"] if debug_distributed else [])]
    changes += parse_script(script)
    submits = slurm and is_outside_job(os.environ)
    job = {"--sbatch": sbatch, "--container": container, "--container-mount": container_mount}
    slurm_options.check_submission({"--hostfile": hostfile, "--hosts": hosts, "--no-ssh": no_ssh}, job, submits=submits)
    pods = kubernetes_options.parse_kubernetes(ctx.params, kubernetes_options.find_conflicts(ctx))
    job_id = None if kubernetes else run_id
    request = LaunchRequest(
        spec=spec,
        overrides=tuple(slurm_options.name_first_task(changes, sbatch) if submits else changes),
        hostfile=None if submits else hostfile,
        hosts=None if submits else HostSelection(hosts, slurm, include, exclude, num_nodes, num_gpus),
        resume=resume,
        allow_change=tuple(allow_change or ()),
        allow_local_code=allow_local_code,
        allow_script=script is not None,
        per_node=parse_no_ssh(no_ssh, job_id, node_rank, master_addr, in_step=slurm),
        notify=notify,
        survey=not (dry_run or no_preflight),
        dry_run=dry_run,
        submission=slurm_options.parse_submission(ctx, sbatch, container, container_mount) if submits else None,
    )
    if pods is not None:
        exit_with(print_jobset(JobSetRequest(request, pods, spell_out_arguments(ctx)), output))
    setup = prepare(request, ConsoleLog())
    if isinstance(setup, LaunchRejected):
        exit_rejected(setup)
    if isinstance(setup, RunComplete):
        print_complete(setup, format)
        return
    if isinstance(setup, SlurmJob):
        submit_and_print(setup, dry_run=dry_run)
        return
    if dry_run:
        print_dry_run(setup.plan, setup.run.spec.zero, setup.local_host.environ, format)
        return
    saves, shown = setup.run.spec.checkpoint, resolve_mode(mode.value)
    screen = Screen(shown, saves.save_steps, save_at_end=saves.save_at_end, tee=tee)
    try:
        result = run_setup(setup, screen, log_to_stderr)
    finally:
        screen.close()
    if isinstance(result, LaunchRejected):
        exit_rejected(result)
    print_result(result, format, list(screen.last_lines) if shown == "quiet" else [])
    exit_with(result.verdict.code)
