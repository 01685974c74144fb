# SPDX-License-Identifier: Apache-2.0
"""Hosts of a survey: those that answered, and their names in a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.gates.context import Context

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import HostFacts


def format_hosts(hosts: Iterable[HostFacts | str], limit: int = 3) -> str:
    """`worker-1`, `worker-2` and 14 more: hosts for a message."""
    names = [f"`{host if isinstance(host, str) else host.name}`" for host in hosts]
    if len(names) > limit + 1:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def list_reachable_hosts(ctx: Context) -> tuple[HostFacts, ...]:
    """The hosts that answered; none without a survey."""
    return ctx.survey.reachable_hosts if ctx.survey else ()
