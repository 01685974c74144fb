# SPDX-License-Identifier: Apache-2.0
"""A launch as a job of Slurm, as text: the job that would be submitted, and the one that was."""

from __future__ import annotations

import shlex

from harness.launching.setup.slurm import SlurmJob


def render_job(job: SlurmJob) -> str:
    """The script and the command of a job that is not submitted."""
    return f"{job.file}\n\n{job.script}\nCommand\n  {shlex.join(job.argv)}\n\nNothing was written or submitted"


def render_submitted(job: SlurmJob, number: str) -> str:
    """The number of the job, its log, and the commands that come next."""
    log = f"{job.file.with_suffix('')}-{number}.log"
    return f"Submitted job {number} of {job.file}\nWhat it prints goes to {log}\nNext: squeue -j {number}; harness runs"
