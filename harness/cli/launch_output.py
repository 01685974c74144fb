# SPDX-License-Identifier: Apache-2.0
"""The output of `harness launch`: a dry run, a submitted job, or the result of the run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cli.console import ConsoleLog, exit_rejected, log_to_stderr, write_output
from harness.cli.output_format import OutputFormat
from harness.diagnosis.run_diagnosis import diagnose_failure
from harness.errors import ExitCode, UserError
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.launching.ops.build_cache import ops_are_built
from harness.launching.setup.jobset_checks import JobSetRequest, prepare_jobset
from harness.launching.setup.launch_plan import LaunchPlan
from harness.launching.setup.launch_request import NOTHING_WRITTEN, LaunchRejected, RunComplete
from harness.launching.setup.slurm import NOT_SUBMITTED, SlurmJob, submit_job
from harness.launching.supervise.export_step import read_sample
from harness.launching.supervise.launch_runner import LaunchResult
from harness.run_records.run_record import read_run_record
from harness.spec.sections.zero_spec import ZeroSpec
from harness.views import launch as view
from harness.views import log_diagnosis
from harness.views.launch import complete_as_json, render_complete, render_job, render_jobset, render_submitted
from harness.views.report import write_report_or_note
from harness.views.style import style_for


def submit_and_print(job: SlurmJob, *, dry_run: bool) -> None:
    """Submit the job of Slurm, and print its number; in a dry run print the job."""
    if dry_run:
        print(render_job(job))
        return
    try:
        number = submit_job(job)
    except UserError as error:
        exit_rejected(LaunchRejected(error.findings, None, error.code, NOT_SUBMITTED))
    print(render_submitted(job, number))


def print_jobset(request: JobSetRequest, output: str | None) -> ExitCode:
    """Print the JobSet of a launch, or write it to the file `output`."""
    manifest = prepare_jobset(request, ConsoleLog())
    if isinstance(manifest, LaunchRejected):
        exit_rejected(manifest)
    text = render_jobset(manifest)
    if output is not None:
        return write_output(Path(output), text)
    print(text, end="")
    return ExitCode.OK


def print_complete(complete: RunComplete, format: OutputFormat) -> None:
    """Print that the run to resume is complete."""
    print(complete_as_json(complete) if format is OutputFormat.json else render_complete(complete))


def print_dry_run(plan: LaunchPlan, zero: ZeroSpec, environ: Mapping[str, str], format: OutputFormat) -> None:
    """Print the plan of a dry run; `environ` is that of this shell."""
    if format is OutputFormat.json:
        print(json.dumps(plan.to_json(), indent=2))
        print(f"{NOTHING_WRITTEN}.", file=sys.stderr)
        return
    environ = plan.environment(environ)
    ready = ops_are_built(plan.ops, torch_extensions_dir(environ), environ)
    print(view.render_dry_run(plan, zero, ready, style_for(sys.stdout)))


def print_result(result: LaunchResult, format: OutputFormat, last_lines: Sequence[str]) -> None:
    """Print the result of the run. Where it failed, `last_lines` of the ranks go to stderr."""
    style, run_dir = style_for(sys.stdout), result.plan.run_dir
    if not result.plan.is_leader:
        print(view.render_node_summary(result, style))
        return
    report = write_report_or_note(run_dir, log_to_stderr) if result.ranks_started else None
    record = read_run_record(run_dir)
    if result.verdict.state == "failed" and last_lines:
        print("\n".join(last_lines), file=sys.stderr)
    diagnosis = diagnose_failure(run_dir, result.verdict) if result.ranks_started else None
    if format is OutputFormat.json:
        diagnosis_dict = log_diagnosis.diagnosis_as_dict(diagnosis) if diagnosis else None
        print(view.launch_as_json(result, record, report, diagnosis_dict))
        return
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    text = view.render_summary(result, record, read_sample(run_dir), report, style, diagnosis=diagnosis, width=width)
    print(text)
