"""Hosts in a message: the first few by name, the others by number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import HostFacts


def format_hosts(hosts: Iterable[HostFacts | str], limit: int = 3) -> str:
    """`worker-1`, `worker-2` and 14 more: hosts for a message."""
    found = [f"`{h if isinstance(h, str) else h.name}`" for h in hosts]
    if len(found) > limit + 1:
        return f"{', '.join(found[:limit])} and {len(found) - limit} more"
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
