# SPDX-License-Identifier: Apache-2.0
"""Paths and options that an action of `harness checkpoint` does not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.cli.options import refuse_unread
from harness.errors import ExitCode, user_error

_PATHS = {"ls": 1, "show": 1, "diff": 2, "upload": 2, "download": 2, "inspect": 1, "import": 2, "convert": 2}
_OPTIONS: dict[str, tuple[str, ...]] = {
    "verify": ("--quick", "--format"),
    "rm": ("--yes", "--force"),
    "upload": (),
    "download": (),
    "import": ("--spec", "--drop-optimizer-states", "--partial"),
    "convert": ("--to",),
}


def check_count(action: str, paths: Sequence[str]) -> None:
    """Raises UserError for too few or too many paths."""
    expected = _PATHS.get(action)
    if expected is not None and len(paths) != expected:
        message = f"`harness checkpoint {action}` takes {expected} paths, got {len(paths)}"
        raise user_error("SP011", message.replace("1 paths", "1 path"), fix=f"name {expected}", code=ExitCode.USAGE)


def check_options(action: str, options: Mapping[str, bool]) -> None:
    """Raises BadParameter for an option that is given and that the action does not read."""
    reads = _OPTIONS.get(action, ("--format",))
    unread = {name: is_given for name, is_given in options.items() if name not in reads}
    refuse_unread(f"has no effect on `harness checkpoint {action}`", unread)
