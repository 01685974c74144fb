"""Finds ranks, or hosts, that are slower than their peers for some time, and why that may be. Numbers in, names out.

Ranks that wait for each other all take as long as the slowest, so that the time of a step says nothing: what is
compared is *busy* time, the step without what a rank waits for others. Nothing is measured here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from harness.units import format_seconds

Cause = Literal["data", "compute", "input_size", "io", "host"]

WINDOW_STEPS = 20
"""Steps that a rank is judged by. It must have been slow in most looks at them, and by their median or mean."""
_LEAST_LOOKS = 3
_MOSTLY = 0.75
_NEARLY = 0.9
"""A figure this near the threshold is as good as on it: with noise of 5 % a step it is known to a tenth of it or so."""
_RELEASED = 0.5
"""A named rank is let go once it is slower by less than this part of the threshold."""
_SMALL_SECONDS = 5e-3
"""What a rank holds the others up by at least: less than 5 ms a step is noise."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one rank was busy with in a step: seconds, by kind; and the operations of the rows that it was given."""

    data: float
    compute: float
    io: float = 0.0
    host: float = 0.0
    work: float = 0.0
    faults: float = 0.0
    """Pages a step that had to be read from a disk."""

    @property
    def busy(self) -> float:
        """All of it. `io` is inside `compute`."""
        return self.data + self.compute + self.host


@dataclass(frozen=True, slots=True)
class Straggler:
    """Ranks of one host that hold the others up. `slower` is 0.25 for 25 %, `seconds` what it costs a step."""

    ranks: tuple[int, ...]
    host: str
    whole_host: bool
    slower: float
    seconds: float
    cause: Cause
    evidence: str

    @property
    def name(self) -> str:
        """Who it is, in words."""
        if self.whole_host:
            return f"host {self.host} ({len(self.ranks)} ranks)"
        return f"rank {self.ranks[0]} on {self.host}"


@dataclass(frozen=True, slots=True)
class Change:
    """A straggler that is named, or gone."""

    straggler: Straggler
    named: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    steps: int
    looks: Sequence[Look]
    ratios: Sequence[float]


@dataclass(slots=True)
class Detector:
    """Judges each look at all ranks. `peers`: ranks with the same mark do the same kind of work, such as the stage."""

    hosts: Sequence[str]
    peers: Sequence[Hashable]
    threshold: float = 0.2
    _looks: deque[_Seen] = field(default_factory=deque)
    _named: dict[int, Straggler] = field(default_factory=dict)

    def see(self, steps: int, looks: Sequence[Look]) -> list[Change]:
        """One look a rank, typical of the last `steps` steps; returns what has changed by it."""
        self._looks.append(_Seen(steps, looks, self._against_peers([look.busy for look in looks])))
        while (
            len(self._looks) > _LEAST_LOOKS and sum(s.steps for s in self._looks) - self._looks[0].steps >= WINDOW_STEPS
        ):
            self._looks.popleft()
        if len(self._looks) < _LEAST_LOOKS:
            return []
        ratios = [seen.ratios for seen in self._looks]
        last = ratios[-1]
        suspects = [rank for rank, much in enumerate(last) if much >= self.threshold / 2 or rank in self._named]
        usual = {rank: _usual([seen[rank] for seen in ratios]) for rank in suspects}
        least = self.threshold * _NEARLY
        slow = {rank: much for rank, much in usual.items() if much >= least and self._mostly(rank, ratios)}
        return [*self._gone(usual), *self._new(slow)]

    def _steps(self) -> int:
        return sum(seen.steps for seen in self._looks)

    def _against_peers(self, values: Sequence[float]) -> list[float]:
        """Each rank's value over the median of its peers' without it, less 1."""
        groups: dict[Hashable, list[float]] = defaultdict(list)
        for mark, value in zip(self.peers, values, strict=True):
            groups[mark].append(value)
        for group in groups.values():
            group.sort()
        out = []
        for mark, value in zip(self.peers, values, strict=True):
            middle = _median_without(groups[mark], value)
            slow = middle is not None and middle > 0 and value - middle >= _SMALL_SECONDS
            out.append(value / middle - 1 if slow and middle else 0.0)
        return out

    def _mostly(self, rank: int, ratios: Sequence[Sequence[float]]) -> bool:
        """Was it slow in most looks, and in the last? One long pause is none of our business."""
        high = [seen[rank] >= self.threshold / 2 for seen in ratios]
        return high[-1] and sum(high) >= _MOSTLY * len(high)

    def _gone(self, usual: Mapping[int, float]) -> list[Change]:
        over = [rank for rank in self._named if usual[rank] < self.threshold * _RELEASED]
        left = {id(s): s for s in (self._named.pop(rank) for rank in over)}
        still = {id(s) for s in self._named.values()}
        return [Change(s, named=False) for key, s in left.items() if key not in still]

    def _new(self, slow: Mapping[int, float]) -> list[Change]:
        fresh = [rank for rank in slow if rank not in self._named]
        found, medians = [], _Medians(self.peers, self._mean)
        for host, ranks in _by_host(fresh, self.hosts).items():
            whole = len(ranks) > 1 and len(ranks) == sum(name == host for name in self.hosts)
            for group in [ranks] if whole else [[rank] for rank in ranks]:
                worst = max(group, key=lambda rank: slow[rank])
                mine, theirs = self._mean(worst), medians.without(worst)
                cause, evidence = likely_cause(mine, theirs)
                lost = mine.busy - theirs.busy
                straggler = Straggler(tuple(group), host, whole, self._slower(worst), lost, cause, evidence)
                self._named.update(dict.fromkeys(group, straggler))
                found.append(Change(straggler, named=True))
        return found

    def _slower(self, rank: int) -> float:
        """Over the looks in which it was slow: it may have begun within the window."""
        high = [s.ratios[rank] for s in self._looks if s.ratios[rank] >= self.threshold / 2]
        return sum(high) / len(high)

    def _mean(self, rank: int) -> Look:
        seen = [s.looks[rank] for s in self._looks]
        return Look(*(sum(getattr(look, name) for look in seen) / len(seen) for name in _FIELDS))


@dataclass(slots=True)
class _Medians:
    """What the peers of a rank do, kind by kind; computed once for each group of them."""

    marks: Sequence[Hashable]
    mean: Callable[[int], Look]
    _known: dict[Hashable, dict[str, list[float]]] = field(default_factory=dict)

    def without(self, rank: int) -> Look:
        mark = self.marks[rank]
        if mark not in self._known:
            looks = [self.mean(other) for other, its in enumerate(self.marks) if its == mark]
            self._known[mark] = {name: sorted(getattr(look, name) for look in looks) for name in _FIELDS}
        mine, known = self.mean(rank), self._known[mark]
        return Look(*(_median_without(known[name], getattr(mine, name)) or 0.0 for name in _FIELDS))


_FIELDS = ("data", "compute", "io", "host", "work", "faults")


def likely_cause(mine: Look, peers: Look) -> tuple[Cause, str]:
    """What most of the difference is, and the numbers that say so.

    More work than the peers have explains a longer computation when it accounts for half of it at least; pages read
    from a disk explain a wait for data.
    """
    compute = (mine.compute - mine.io) - (peers.compute - peers.io)
    excess: dict[Cause, float] = {
        "data": mine.data - peers.data,
        "io": mine.io - peers.io,
        "compute": compute,
        "host": mine.host - peers.host,
    }
    cause = max(excess, key=lambda kind: excess[kind])
    if cause == "data":
        text = f"waits {_against(mine.data, peers.data)} a step for data"
        if mine.faults >= 1 and mine.faults >= 2 * peers.faults:
            return "io", f"{text}, and reads {mine.faults:.0f} pages a step from a disk, its peers {peers.faults:.0f}"
        return "data", text
    if cause == "io":
        return "io", f"is blocked {_against(mine.io, peers.io)} a step by the disk it swaps to"
    if cause == "host":
        return "host", f"spends {_against(mine.host, peers.host)} a step beside data and computation"
    text = f"computes {_against(mine.compute, peers.compute)} a step"
    before = peers.compute - peers.io
    if peers.work > 0 and before > 0 and mine.work / peers.work - 1 >= 0.5 * compute / before:
        return "input_size", f"{text}, of {mine.work / peers.work:.2f} times the work: its rows are longer"
    same = f", of {mine.work / peers.work:.2f} times the work" if peers.work > 0 else ""
    return "compute", text + same


def _against(mine: float, peers: float) -> str:
    return f"{format_seconds(mine)} against {format_seconds(peers)}"


def _by_host(ranks: Sequence[int], hosts: Sequence[str]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        out[hosts[rank]].append(rank)
    return out


def _usual(ratios: Sequence[float]) -> float:
    """Median or mean, whichever is more: the one tells sooner that something has begun, the other wavers less."""
    return max(median(ratios), sum(ratios) / len(ratios))


def _median_without(ordered: Sequence[float], value: float) -> float | None:
    """The median of the sorted values without one that is `value`; None when nothing is left."""
    count = len(ordered) - 1
    if count < 1:
        return None
    place = bisect_left(ordered, value, 0, bisect_right(ordered, value))

    def at(index: int) -> float:
        return ordered[index if index < place else index + 1]

    middle = count // 2
    return at(middle) if count % 2 else (at(middle - 1) + at(middle)) / 2
