"""`harness launch --slurm` outside a job: the spec is checked here, and the launch is handed to Slurm."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.check.check_file import check_file
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.errors import UserError
from harness.hostinfo import machine
from harness.interpreter import python_command
from harness.launching.hosts.local_host import DISTRIBUTION
from harness.launching.setup.slurm import build_job, submit_job


def submit_launch(
    spec: str, overrides: Sequence[str], options: Sequence[str], resume: str, *, dry_run: bool, allow_code: bool
) -> None:
    """Check, write the script, submit; or show what would be written and run. Ends the program where it cannot."""
    checked = check_file(spec, overrides=overrides, launching=True, allow_code=allow_code)
    run = exit_on_errors(checked, "No job was submitted")
    folder = Path.cwd()
    words = _drop_options(sys.argv[1:], {"--sbatch", "--resume"})
    command = [*_harness_argv(), *words]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    job = build_job(run.name, folder, folder / run.spec.launch.output_dir, command, resume, options, stamp)
    if dry_run:
        print(f"{job.file}\n\n{job.script}\nCommand\n  {shlex.join(job.argv)}\n\nNothing was written or submitted")
        return
    try:
        number = submit_job(job)
    except UserError as refused:
        print_findings(refused.findings, None)
        print("No job was submitted.", file=sys.stderr)
        exit_with(refused.code)
    log = str(job.file.with_suffix("")) + f"-{number}.log"
    print(f"Submitted job {number} of {job.file}\nWhat it prints goes to {log}\nNext: squeue -j {number}; harness runs")


def _harness_argv() -> list[str]:
    """This program. One that is not installed can only be found in the current folder."""
    words = ("-m", "harness")
    return python_command(*words) if machine.package_version(DISTRIBUTION) else [sys.executable, *words]


def _drop_options(words: Sequence[str], options: set[str]) -> list[str]:
    """A command line without these options and their values, and without `--dry-run`."""
    left: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in options:
            skip = not equals
        elif word != "--dry-run":
            left.append(word)
    return left
