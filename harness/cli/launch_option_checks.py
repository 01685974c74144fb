# SPDX-License-Identifier: Apache-2.0
"""Options of `harness launch` that mean nothing together, or name nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from harness.cli.launch_options import check_changed_keys
from harness.cli.options import ProgressMode
from harness.cli.unread_options import refuse_unread


def check_submission(hosts: Mapping[str, object], sbatch: Sequence[str] | None, *, submits: bool) -> None:
    """Raises BadParameter for an option of sbatch where no job is submitted, and for `hosts` where one is."""
    if submits:
        refuse_unread("cannot be used with `--slurm`, whose job runs on the hosts that it gets", hosts)
    else:
        refuse_unread("needs `--slurm` outside a Slurm job", {"--sbatch": sbatch})


def parse_progress(progress: ProgressMode, *, quiet: bool, tee: bool) -> ProgressMode:
    """The style of progress. Raises BadParameter for options that exclude each other."""
    if progress is not ProgressMode.auto:
        refuse_unread("is `--progress quiet`: give one of them", {"--quiet": quiet})
    if quiet or progress is ProgressMode.quiet:
        refuse_unread("shows lines that `quiet` leaves out", {"--tee": tee})
    return ProgressMode.quiet if quiet else progress


def check_allowed_changes(keys: Sequence[str], resume: str) -> None:
    """Raises BadParameter for a key of `--allow-change` without a resume, or that no run spec has."""
    if not keys:
        return
    if resume == "never":
        message = "needs `--resume`: a run from step 0 may change anything"
        raise typer.BadParameter(message, param_hint="--allow-change")
    check_changed_keys(keys)
