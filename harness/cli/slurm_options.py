# SPDX-License-Identifier: Apache-2.0
"""Options of `harness launch --slurm` outside of a job, for typer, and their parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from harness.cli.options import host_option, refuse_unread, spell_out_arguments
from harness.launching.setup.launch_request import SlurmSubmission
from harness.launching.setup.slurm import TASK_VARIABLE, SlurmContainer, first_task, is_job_array

SbatchOption = Annotated[
    list[str] | None,
    host_option(metavar="OPTION", help="With `--slurm` outside a job: an option of sbatch, such as `--nodes=2`."),
]
ContainerOption = Annotated[
    str | None,
    host_option(
        metavar="IMAGE",
        help="With `--slurm` outside a job: run in a container on each host, started by srun, without ssh. "
        "An image of Pyxis and Enroot, or a `.sif` file of Apptainer, with the harness.",
    ),
]
ContainerMountOption = Annotated[
    list[str] | None,
    host_option(
        metavar="SOURCE[:PATH]",
        help="With `--container`: a folder to mount beside the current one and the run directory. Repeatable.",
    ),
]


def check_submission(hosts: Mapping[str, object], job: Mapping[str, object], *, submits: bool) -> None:
    """Raises BadParameter for an option of the job where none is submitted, and for `hosts` where one is."""
    if submits:
        refuse_unread("cannot be used with `--slurm`, whose job runs on the hosts that it gets", hosts)
    else:
        refuse_unread("needs `--slurm` outside a Slurm job", job)


def parse_submission(
    ctx: typer.Context, sbatch: Sequence[str] | None, container: str | None, mounts: Sequence[str] | None
) -> SlurmSubmission:
    """The job of a launch. Raises BadParameter for a mount without a container, and for words that srun or the
    container would read as two.
    """
    if container is None:
        refuse_unread("needs `--container`", {"--container-mount": mounts})
        return SlurmSubmission(spell_out_arguments(ctx), tuple(sbatch or ()))
    if not container or container.startswith("-") or any(map(str.isspace, container)):
        raise typer.BadParameter(f"`{container}` is no image", param_hint="--container")
    for mount in mounts or ():
        if not all(part.startswith("/") for part in mount.split(":")) or "," in mount:
            message = f"`{mount}` is not `SOURCE` or `SOURCE:PATH` with absolute folders and without commas"
            raise typer.BadParameter(message, param_hint="--container-mount")
    image = SlurmContainer(container, tuple(mounts or ()))
    return SlurmSubmission(spell_out_arguments(ctx), tuple(sbatch or ()), image)


def name_first_task(changes: Sequence[str], sbatch: Sequence[str] | None) -> list[str]:
    """The overrides with the first index of a job array for `$SLURM_ARRAY_TASK_ID`, by which the launch is checked.
    Raises BadParameter where there is no array.
    """
    if not any(TASK_VARIABLE in change for change in changes):
        return list(changes)
    if not is_job_array(sbatch or ()):
        raise typer.BadParameter(f"`{TASK_VARIABLE}` needs `--slurm --sbatch=--array=...`", param_hint="--set")
    return [change.replace(TASK_VARIABLE, first_task(sbatch or ())) for change in changes]
