"""Hosts in a message: the first few by name, the others by number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.facts.survey import HostFacts


def names(hosts: Iterable[HostFacts | str], most: int = 3) -> str:
    """`worker-1`, `worker-2` and 14 more: hosts for a message."""
    found = [f"`{h if isinstance(h, str) else h.name}`" for h in hosts]
    if len(found) > most + 1:
        return f"{', '.join(found[:most])} and {len(found) - most} more"
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
