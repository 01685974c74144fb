# SPDX-License-Identifier: Apache-2.0
"""Options of `harness launch` that mean nothing together, or name nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

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
    """Raises BadParameter for a key of `--allow-change` without a resume, or that no resume compares."""
    if not keys:
        return
    if resume == "never":
        message = "needs `--resume`: a run from step 0 may change anything"
        raise typer.BadParameter(message, param_hint="--allow-change")
    from harness.checkpoints.resume_compatibility import find_compared_keys
    from harness.spec.suggestions import nearest_name

    known = find_compared_keys()
    for key in keys:
        parts = key.split(".")
        prefixes = [".".join(parts[:length]) for length in range(1, len(parts))]
        is_in_map = any(name in known and not any(k.startswith(f"{name}.") for k in known) for name in prefixes)
        if key not in known and not is_in_map:
            near = nearest_name(key, known)
            hint = f": did you mean `{near}`?" if near else ""
            message = f"`{key}` is no key or section of a run spec{hint}"
            raise typer.BadParameter(message, param_hint="--allow-change")
