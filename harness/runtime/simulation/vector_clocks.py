# SPDX-License-Identifier: Apache-2.0
"""Vector clocks: the order of work, with a clock for each agent that works in an order of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class VectorClocks:
    """An agent is a name: the host, a stream, the collectives of a group, a read or write of a disk."""

    def __init__(self) -> None:
        self._clocks: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def tick(self, agent: str) -> int:
        """The time of the agent's next piece of work."""
        clock = self._clocks[agent]
        time = clock.get(agent, 0) + 1
        clock[agent] = time
        return time

    def now(self, agent: str) -> int:
        """The time of the agent's latest piece of work; 0 before the first."""
        return self._clocks[agent].get(agent, 0)

    def copy(self, agent: str) -> Mapping[str, int]:
        """The moment after all that the agent was given until now."""
        return dict(self._clocks[agent])

    def join(self, agent: str, other: str | Mapping[str, int]) -> None:
        """Order the agent's next work after another agent's work until now, or after a moment."""
        clock = self._clocks[agent]
        for name, time in (self._clocks[other] if isinstance(other, str) else other).items():
            if clock.get(name, 0) < time:
                clock[name] = time

    def is_ordered(self, agent: str, time: int, before: str) -> bool:
        """Is the agent's work at `time` ordered before the next work of `before`?"""
        return agent == before or self._clocks[before].get(agent, 0) >= time

    def agents(self) -> list[str]:
        """All that have worked or waited."""
        return list(self._clocks)
