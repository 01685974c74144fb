"""Hosts in a message: the first few by name, the others by number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import HostFacts


def format_hosts(hosts: Iterable[HostFacts | str], limit: int = 3) -> str:
    """`worker-1`, `worker-2` and 14 more: hosts for a message."""
    names = [f"`{host if isinstance(host, str) else host.name}`" for host in hosts]
    if len(names) > limit + 1:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
