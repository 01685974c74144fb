# SPDX-License-Identifier: Apache-2.0
"""A launch as a Slurm job, as text: the job of a dry run, and the submitted one."""

from __future__ import annotations

import shlex

from harness.launching.setup.slurm import SlurmJob


def render_job(job: SlurmJob) -> str:
    """The script and the command of a dry run."""
    return f"{job.file}\n\n{job.script}\nCommand\n  {shlex.join(job.argv)}\n\nNothing was written or submitted"


def render_submitted(job: SlurmJob, number: str) -> str:
    """The number of the job, its log, and the next commands."""
    log = f"{job.file.with_suffix('')}-{number}.log"
    return f"Submitted job {number} of {job.file}\nLog: {log}\nNext: squeue -j {number}; harness runs"
