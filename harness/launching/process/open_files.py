# SPDX-License-Identifier: Apache-2.0
"""The limit for open files of this process, which a launch on thousands of hosts needs higher than its default."""

from __future__ import annotations

import contextlib
import resource

_FILES_PER_HOST = 3
"""Two pipes of a node agent's ssh, and what starting it takes."""
_OTHER_FILES = 512


def required_open_files(num_hosts: int) -> int:
    """The files that a launch on so many other hosts has open at once."""
    return _FILES_PER_HOST * num_hosts + _OTHER_FILES


def max_open_files() -> int | None:
    """The number to which this process may raise its limit; None is no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def raise_open_file_limit(num_hosts: int) -> None:
    """Raise the soft limit to what so many hosts need, as far as the hard limit lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = required_open_files(num_hosts)
    if soft == resource.RLIM_INFINITY or soft >= required:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (required if hard == resource.RLIM_INFINITY else min(required, hard), hard)
        )
