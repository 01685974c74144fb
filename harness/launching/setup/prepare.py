# SPDX-License-Identifier: Apache-2.0
"""Builds a launch (spec, checks, survey, plan, run-directory files), initially and again after losing hosts.

Prints nothing. Writes nothing but the plan for the remaining hosts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.check.check_file import LoadedRun, check_file, check_loaded_run, check_survey, load_run
from harness.check.environment_fit import describe_releases
from harness.check.finding_places import place_findings
from harness.check.machine_findings import with_findings, with_launch_findings
from harness.check.planned_machine import check_sizes, on_this_machine, plan_here, runs_on_local_cpu
from harness.checkpoints.store_source import SOURCE_FILE
from harness.errors import ExitCode, UserError
from harness.file_io import relative_to_cwd
from harness.findings import Finding, LinesOf, Report
from harness.hostinfo.host_survey import Survey
from harness.hostinfo.machine import host_memory
from harness.launching.hosts.local_host import LocalHost, inspect_local_host, unresolved_names_note
from harness.launching.hosts.preflight_survey import SurveyOptions, survey_hosts
from harness.launching.setup.code_trust import AllowedCode, verify_code_allowed
from harness.launching.setup.device_checks import check_cuda_compiler, check_gpu_architectures
from harness.launching.setup.environment import with_flops_profiler_output
from harness.launching.setup.launch_checks import (
    check_launch,
    find_other_obstacles,
    log_environment_notes,
    refuse_deepspeed_json,
    soften_for_dry_run,
)
from harness.launching.setup.launch_plan import LaunchPlan, Network, RunTarget, build_launch_plan, is_local, ops_of_run
from harness.launching.setup.launch_request import (
    NOTHING_WRITTEN,
    LaunchLog,
    LaunchRejected,
    LaunchRequest,
    LaunchSetup,
    RunComplete,
    SlurmSubmission,
)
from harness.launching.setup.no_ssh import resolve_node_rank, shared_run_dir
from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher
from harness.launching.setup.resume import ResumeSource, find_complete_run, resolve_resume
from harness.launching.setup.run_dir import new_run_dir, replace_files
from harness.launching.setup.slurm import NOT_SUBMITTED, SlurmJob, build_job, harness_argv, job_command
from harness.launching.setup.store_checks import require_stores, with_environment
from harness.nvme_dirs import with_run_swap_dirs
from harness.plan.plan_json import plan_json
from harness.plan.planner import Plan, make_plan
from harness.render import DSConfig, render_with_tuned_defaults
from harness.run.resolved_run import ResolvedRun
from harness.spec.hostfile import Cluster, hostfile_text
from harness.spec.parse.source import Source

_UNHEALTHY_HOSTS = "No rank was started and nothing was written. `harness preflight` shows all answers"


def prepare(request: LaunchRequest, log: LaunchLog) -> LaunchSetup | SlurmJob | RunComplete | LaunchRejected:
    """The setup of a launch, before anything is written; or the rejection with its findings, or the run to resume where
    it is complete.
    """
    submission = request.submission
    loaded = load_run(
        request.spec,
        overrides=request.overrides,
        hostfile=request.hostfile,
        selection=request.hosts,
        local_num_gpus=request.hosts.num_gpus if request.hosts is not None else None,
        look_at_paths=True,
    )
    names = (host.name for host in loaded.cluster.hosts) if loaded.cluster else ()
    local_host = inspect_local_host(names, loaded.spec.launch.env if loaded.spec else None)
    checked = check_loaded_run(
        loaded,
        default_world_size=local_host.num_accelerators or 1 if submission is None else None,
        launching=True,
        allow_code=request.allow_local_code,
    )
    checked = with_launch_findings(checked, here=_has_local_ranks(request, loaded, local_host), planned=True)
    run, text = checked.run, checked.source
    if run is None or text is None or not checked.report.ok:
        closing = NOTHING_WRITTEN if submission is None else NOT_SUBMITTED
        if run is not None and text is not None and submission is None:
            checked = with_findings(checked, find_other_obstacles(request, run, local_host))
        return LaunchRejected(checked.report.findings, checked.lines_of, checked.code, closing, checked.report)
    _log_findings(log, checked.report, checked.lines_of)
    if submission is not None:
        return _build_job(submission, run, local_host, request.resume, checked.lines_of)
    for note in (*(f"note: {line}" for line in describe_releases()), unresolved_names_note(local_host)):
        if note:
            log.on_note(note)
    try:
        target = _locate(request, run, local_host)
        reaches_hosts = target.node_rank is None and not is_local(run, local_host)
        _check_startable(request, run, local_host, target, log)
        allowed_code = _verify_code_allowed(request, run, local_host, log)
        source = _find_resume_source(request, run, local_host, target, log)
        if source.complete is not None and source.origin is not None:
            return RunComplete(source.origin, source.complete)
        run = run._replace(batch=source.batch or run.batch)
        urls, env = run.spec.store_urls, run.spec.launch.env
        require_stores(urls, env, source.runs, node_rank=target.node_rank, read_only=request.dry_run)
        log_environment_notes(local_host, log.on_note, reaches_hosts=reaches_hosts)
        run, config, documents, planned = _render_run(
            run, text, checked.report, local_host, target.run_dir, loaded.overrides
        )
        ops = ops_of_run(run, config, accelerated=local_host.accelerated)
        _check_own_ranks(request, planned, None if reaches_hosts else ops, local_host, log)
    except UserError as error:
        return LaunchRejected(place_findings(error.findings, text), checked.lines_of, error.code, NOTHING_WRITTEN)
    target = replace(
        target,
        documents=documents | ({SOURCE_FILE: source.stored.to_text()} if source.stored else {}),
        resume=source.checkpoint,
        allowed_changes=request.allow_change,
        allowed_code=allowed_code,
        training=source.place_in_training(target.run_dir),
    )
    survey = prewarmed_launcher = None
    if request.survey and reaches_hosts:
        prewarmed_launcher = PrewarmedLauncher.start(local_host, run.spec.launch)
        survey = _survey_hosts(run, ops, local_host, log)
        report = check_survey(run, text, survey)
        if not report.ok:
            _discard(prewarmed_launcher)
            return LaunchRejected(report.findings, checked.lines_of, ExitCode.PREFLIGHT, _UNHEALTHY_HOSTS)
        _log_findings(log, report, checked.lines_of)
    network = Network.from_survey(survey) if survey else None
    network = Network(None, request.per_node.master_addr) if request.per_node is not None else network
    plan = build_launch_plan(run, config, local_host, target, network)
    return LaunchSetup(request, run, local_host, plan, target, survey, prewarmed_launcher)


def _verify_code_allowed(
    request: LaunchRequest, run: ResolvedRun, local_host: LocalHost, log: LaunchLog
) -> AllowedCode:
    """The code of the spec that will run, which the log names. Raises UserError."""
    allowed = verify_code_allowed(
        run.spec, local_host.cwd, allow_local_code=request.allow_local_code, allow_script=request.allow_script
    )
    option = "--allow-local-code" if request.allow_local_code else "--script"
    for sentence in allowed.sentences:
        log.on_note(f"{option} allows {sentence}")
    return allowed


def _has_local_ranks(request: LaunchRequest, loaded: LoadedRun, local_host: LocalHost) -> bool:
    """Whether ranks run on this machine, so that it needs every path of the spec. Other hosts may differ."""
    if request.submission is not None:
        return False
    hosts = loaded.cluster.hosts if loaded.cluster is not None and request.per_node is None else ()
    return not hosts or any(host.name in local_host.local_names for host in hosts)


def replan_without_hosts(setup: LaunchSetup, lost: Collection[str]) -> LaunchPlan | str:
    """The same run on the remaining hosts, written to its run directory; or the reason why it cannot run there.

    The global batch stays the same: more accumulation steps replace the lost ranks.
    """
    old, run_dir = setup.run, setup.plan.run_dir
    hosts = [host for host in (old.cluster.hosts if old.cluster else ()) if host.name not in lost]
    if any(host.devices is not None for host in hosts):
        return "its devices were selected one by one"
    overrides = [
        *setup.request.overrides,
        f"train.global_batch_size={old.batch.global_batch}",
        f"train.per_device_train_batch_size={old.batch.micro_batch}",
        "train.gradient_accumulation_steps=null",
    ]
    hostfile = run_dir / "hostfile.left"
    hostfile.write_text("".join(f"{host.name} slots={host.slots}\n" for host in hosts), encoding="utf-8")
    # The code that runs already was allowed before.
    checked = check_file(
        setup.request.spec, overrides=overrides, hostfile=str(hostfile), launching=True, allow_code=True
    )
    hostfile.unlink()
    if checked.run is None or checked.source is None or not checked.report.ok:
        return next((f.message for f in checked.report.findings if f.is_error), "the spec is no longer readable")
    run, config, documents, _ = _render_run(
        checked.run, checked.source, checked.report, setup.local_host, run_dir, overrides
    )
    target = replace(setup.target, documents=documents)
    network = Network.from_survey(setup.survey.without(lost)) if setup.survey else None
    plan = build_launch_plan(run, config, setup.local_host, target, network)
    replace_files(plan)
    return plan


def _render_run(
    run: ResolvedRun, source: Source, report: Report, local_host: LocalHost, run_dir: Path, overrides: Sequence[str]
) -> tuple[ResolvedRun, Mapping[str, Any], dict[str, str], Plan]:
    """The run with its tuned defaults, its DeepSpeed JSON, the documents of its directory, and its plan: on this
    machine where all ranks are here. `report` is that of its check.
    """
    run, rendered = render_with_tuned_defaults(run, local_host.cwd)
    own_folders = with_flops_profiler_output(with_run_swap_dirs(rendered.config, run_dir), run_dir)
    config = DSConfig(own_folders, {})
    planned = on_this_machine(run) if is_local(run, local_host) else run
    gpu = None if local_host.num_accelerators else "cpu"
    plan = make_plan(planned, local_host.cwd, gpu, local_memory=host_memory().total or None)
    documents = {
        "spec.yaml": source.text,
        "spec.resolved.json": json.dumps(run.to_json(), indent=2) + "\n",
        "ds_config.json": config.json_text,
        "plan.json": json.dumps(plan_json(plan), indent=2) + "\n",
        "findings.json": json.dumps(report.to_json(), indent=2) + "\n",
    }
    if overrides:
        documents["overrides.txt"] = "".join(f"{text}\n" for text in overrides)
    if run.cluster is not None:
        documents["hostfile"] = hostfile_text(run.cluster)
    return run, config.config, documents, plan


def _build_job(
    submission: SlurmSubmission, run: ResolvedRun, local_host: LocalHost, resume: str, lines_of: LinesOf | None
) -> SlurmJob | LaunchRejected:
    try:
        command = job_command(submission.arguments, run.spec.launch.env)
    except UserError as error:
        return LaunchRejected(error.findings, lines_of, error.code, NOT_SUBMITTED)
    options, stamp = submission.sbatch_options, time.strftime("%Y%m%d-%H%M%S")
    output_dir = local_host.cwd / run.spec.launch.output_dir
    container = submission.container
    own = harness_argv() if container is None else container.step(local_host.cwd, output_dir)
    command = [*own, *command]
    per_node = container is not None
    return build_job(run.name, local_host.cwd, output_dir, command, resume, options, stamp, per_node=per_node)


def _locate(request: LaunchRequest, run: ResolvedRun, local_host: LocalHost) -> RunTarget:
    """The run directory, still without documents; with `--no-ssh` the index of this host. Raises UserError where it is
    none of the hosts.
    """
    output_dir = local_host.cwd / run.spec.launch.output_dir
    if request.per_node is None:
        return RunTarget(new_run_dir(output_dir, run.name), {})
    node_rank = resolve_node_rank(request.per_node, run.cluster, local_host)
    run_dir = shared_run_dir(request.per_node, output_dir, run.name, node_rank)
    return RunTarget(run_dir, {}, node_rank=node_rank)


def _check_startable(
    request: LaunchRequest, run: ResolvedRun, local_host: LocalHost, target: RunTarget, log: LaunchLog
) -> None:
    """Check that the run can start here. Raises UserError. In a dry run some missing programs are warnings."""
    findings = list(check_launch(run, local_host, target.run_dir, target.node_rank))
    if not request.dry_run and target.node_rank is None and any(f.gate == "EN027" for f in findings):
        findings += check_sizes(run, plan_here(run)) if runs_on_local_cpu(run) else ()  # a dry run plans anyway
    if run.kind != "spec":
        findings.insert(0, refuse_deepspeed_json(request.spec))
    has_local_ranks = target.node_rank is not None or is_local(run, local_host)
    _refuse_errors(request, findings, log, has_local_ranks=has_local_ranks)


def _refuse_errors(
    request: LaunchRequest, found: Iterable[Finding], log: LaunchLog, *, has_local_ranks: bool = True
) -> None:
    """Log the warnings. Raises UserError for errors; a dry run takes what this machine lacks as a warning."""
    findings = soften_for_dry_run(found, has_local_ranks=has_local_ranks) if request.dry_run else list(found)
    warnings = [f for f in findings if not f.is_error]
    if warnings:
        log.on_findings(warnings, None)
    errors = [f for f in findings if f.is_error]
    if errors:
        raise UserError(errors, ExitCode.FINDINGS if errors[0].gate.startswith("SP") else ExitCode.PREFLIGHT)


def _check_own_ranks(
    request: LaunchRequest, planned: Plan, ops: tuple[str, ...] | None, local_host: LocalHost, log: LaunchLog
) -> None:
    """Check that this machine's own ranks fit, and the compiler for their ops; None: it has none. Raises UserError."""
    if ops is None:
        return
    if request.per_node is None:
        _refuse_errors(request, check_sizes(planned.run, planned), log)
    environ = {**local_host.environ, **planned.run.spec.launch.env}
    findings = [*check_cuda_compiler(ops, environ, local_host), *check_gpu_architectures(ops, environ, local_host)]
    if findings and not request.dry_run:
        raise UserError(findings, ExitCode.PREFLIGHT)
    if findings:
        log.on_findings(soften_for_dry_run(findings, has_local_ranks=True), None)


def _find_resume_source(
    request: LaunchRequest, run: ResolvedRun, local_host: LocalHost, target: RunTarget, log: LaunchLog
) -> ResumeSource:
    """The checkpoint to resume from; the first host decides for all. Raises UserError."""
    output_dir = local_host.cwd / run.spec.launch.output_dir
    spec = run.spec.model_dump(mode="json")
    if request.resume == "never":
        return ResumeSource()
    if target.node_rank:
        return find_complete_run(request.resume, output_dir, run.name, spec, request.allow_change, run)
    with with_environment(run.spec.launch.env):  # of the object store, as ranks have it
        args = (request.resume, output_dir, run.name, spec, request.allow_change, log.on_note, target.run_dir, run)
        # With `--no-ssh` other hosts look at no checkpoint, and would render another JSON than one with its batch.
        source = resolve_resume(*args, keeps_batch=target.node_rank is None)
    if source.complete is not None:
        return source
    checkpoint = source.checkpoint
    log.on_note(
        f"resuming from {relative_to_cwd(checkpoint)}" if checkpoint else "no earlier checkpoint, starting from step 0"
    )
    return source


def _log_findings(log: LaunchLog, report: Report, lines_of: LinesOf | None) -> None:
    if report.findings:
        log.on_findings(report.findings, lines_of)


def _discard(launcher: PrewarmedLauncher | None) -> None:
    if launcher is not None:
        launcher.discard()


def _survey_hosts(run: ResolvedRun, ops: tuple[str, ...], local_host: LocalHost, log: LaunchLog) -> Survey:
    options = SurveyOptions(log=lambda line: log.on_note(f"harness {line}"))
    return survey_hosts(run.cluster or Cluster(()), run.spec.launch, run.spec.zero, local_host, ops, options)
