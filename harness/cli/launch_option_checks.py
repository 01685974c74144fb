# SPDX-License-Identifier: Apache-2.0
"""Options of `harness launch` that mean nothing together, or name nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from harness.cli.options import ProgressMode, refuse_unread
from harness.hostinfo.path_probe import find_similar_path
from harness.spec.section_fields import list_spec_keys
from harness.spec.suggestions import nearest_name


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


def parse_script(file: str | None) -> list[str]:
    """`--script` as overrides of the spec; the path starts at the current folder. Raises BadParameter."""
    if file is None:
        return []
    if not Path(file).is_file():
        similar = find_similar_path("", file, lambda name: Path(name).is_file())
        hint = f": did you mean `{similar}`?" if similar else ""
        raise typer.BadParameter(f"there is no file `{file}`{hint}", param_hint="--script")
    return [f"plugins.script={json.dumps(str(Path(file).resolve()))}"]


def check_changed_keys(allowed: Iterable[str]) -> None:
    """Raises BadParameter for a key of `--allow-change` that no run spec has: it would allow nothing."""
    known = list(list_spec_keys())
    sections = {key.rpartition(".")[0] for key in known}
    for key in allowed:
        prefixes = [key[:end] for end, letter in enumerate(key) if letter == "."]
        is_inside_map = any(prefix in known and prefix not in sections for prefix in prefixes)
        if key not in known and not is_inside_map:
            similar = nearest_name(key, known)
            hint = f": did you mean `{similar}`?" if similar else ""
            raise typer.BadParameter(f"`{key}` is no key of a run spec{hint}", param_hint="--allow-change")
