# SPDX-License-Identifier: Apache-2.0
"""Detects ranks, or hosts, that are slower than their peers for some time, and their likely cause. Measures nothing.

Ranks that wait for each other all take as long as the slowest one. So the detector compares *busy* time: the step
without the time that a rank waits for others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from harness.units import format_seconds

StragglerCause = Literal["data", "compute", "input_size", "io", "host", "gpu"]

WINDOW_STEPS = 20
"""Steps in the window of the detector. A straggler is slow in most samples of it, and by their median or mean."""
_MIN_SAMPLES = 3
_SLOW_FRACTION = 0.75
_THRESHOLD_TOLERANCE = 0.9
"""A ratio this near the threshold counts: with noise of 5 % a step it is exact to about a tenth."""
_RELEASE_FRACTION = 0.5
"""A straggler has recovered once its ratio is below this part of the threshold."""
_MIN_LOST_SECONDS = 5e-3
"""Seconds that a straggler costs the others at least: less than 5 ms a step is noise."""


@dataclass(frozen=True, slots=True)
class RankSample:
    """The busy seconds of one rank in a step, by kind, and the operations of its rows (`work`)."""

    data: float
    compute: float
    io: float = 0.0
    host: float = 0.0
    work: float = 0.0
    faults: float = 0.0
    """Pages per step that were read from a disk."""

    @property
    def busy(self) -> float:
        """All busy seconds. `io` is a part of `compute`."""
        return self.data + self.compute + self.host


@dataclass(frozen=True, slots=True)
class Straggler:
    """Slow ranks of one host. All figures are means of the same steps: `busy_seconds` of a step without waits for
    others, `peer_seconds` the same of its peers, and those of `evidence`.
    """

    ranks: tuple[int, ...]
    host: str
    whole_host: bool
    busy_seconds: float
    peer_seconds: float
    cause: StragglerCause
    evidence: str

    @property
    def slowdown(self) -> float:
        """0.25 for 25 %."""
        return self.busy_seconds / self.peer_seconds - 1 if self.peer_seconds > 0 else 0.0

    @property
    def lost_seconds(self) -> float:
        """The cost per step."""
        return self.busy_seconds - self.peer_seconds

    @property
    def name(self) -> str:
        """The name for messages."""
        if self.whole_host:
            return f"host {self.host} ({len(self.ranks)} ranks)"
        return f"rank {self.ranks[0]} on {self.host}"


@dataclass(frozen=True, slots=True)
class StragglerChange:
    """A new straggler, or one that has recovered."""

    straggler: Straggler
    is_active: bool


@dataclass(frozen=True, slots=True)
class _WindowEntry:
    steps: int
    samples: Sequence[RankSample]
    ratios: Sequence[float]


@dataclass(slots=True)
class StragglerDetector:
    """Detects stragglers in the samples of all ranks. Ranks of one peer group do the same work, such as a stage."""

    hosts: Sequence[str]
    peer_groups: Sequence[Hashable]
    threshold: float = 0.2
    explain_gpu: Callable[[int], str] | None = None
    """The reason why the GPU of a rank may be slow, with the GPU as its subject; empty without one."""
    _window: deque[_WindowEntry] = field(default_factory=deque)
    _active: dict[int, Straggler] = field(default_factory=dict)

    def update(self, steps: int, samples: Sequence[RankSample]) -> list[StragglerChange]:
        """Add a sample a rank, typical of the last `steps` steps. Returns the changes."""
        self._window.append(_WindowEntry(steps, samples, self._ratios_to_peers([sample.busy for sample in samples])))
        while (
            len(self._window) > _MIN_SAMPLES
            and sum(s.steps for s in self._window) - self._window[0].steps >= WINDOW_STEPS
        ):
            self._window.popleft()
        if len(self._window) < _MIN_SAMPLES:
            return []
        ratios = [entry.ratios for entry in self._window]
        last = ratios[-1]
        suspects = [rank for rank, ratio in enumerate(last) if ratio >= self.threshold / 2 or rank in self._active]
        typical_ratios = {rank: _typical_ratio([row[rank] for row in ratios]) for rank in suspects}
        min_ratio = self.threshold * _THRESHOLD_TOLERANCE
        slow_ratios = {
            rank: ratio
            for rank, ratio in typical_ratios.items()
            if ratio >= min_ratio and self._is_mostly_slow(rank, ratios)
        }
        return [*self._pop_recovered(typical_ratios), *self._add_stragglers(slow_ratios)]

    def _ratios_to_peers(self, values: Sequence[float]) -> list[float]:
        """Each rank's value over the median of its peers' values, less 1."""
        groups: dict[Hashable, list[float]] = defaultdict(list)
        for peer_group, value in zip(self.peer_groups, values, strict=True):
            groups[peer_group].append(value)
        for group in groups.values():
            group.sort()
        ratios = []
        for peer_group, value in zip(self.peer_groups, values, strict=True):
            peer_median = median_excluding(groups[peer_group], value)
            is_slow = peer_median is not None and peer_median > 0 and value - peer_median >= _MIN_LOST_SECONDS
            ratios.append(value / peer_median - 1 if is_slow and peer_median else 0.0)
        return ratios

    def _is_mostly_slow(self, rank: int, ratios: Sequence[Sequence[float]]) -> bool:
        """Was the rank slow in most samples, and in the last one? A single long pause does not count."""
        is_high = [row[rank] >= self.threshold / 2 for row in ratios]
        return is_high[-1] and sum(is_high) >= _SLOW_FRACTION * len(is_high)

    def _pop_recovered(self, typical_ratios: Mapping[int, float]) -> list[StragglerChange]:
        recovered_ranks = [rank for rank in self._active if typical_ratios[rank] < self.threshold * _RELEASE_FRACTION]
        recovered = {id(s): s for s in (self._active.pop(rank) for rank in recovered_ranks)}
        active_ids = {id(s) for s in self._active.values()}
        return [StragglerChange(s, is_active=False) for key, s in recovered.items() if key not in active_ids]

    def _add_stragglers(self, slow_ratios: Mapping[int, float]) -> list[StragglerChange]:
        new_ranks = [rank for rank in slow_ratios if rank not in self._active]
        changes, medians, ranks_on = [], _PeerMedians(self.peer_groups), Counter(self.hosts)
        for host, ranks in _group_by_host(new_ranks, self.hosts).items():
            is_whole_host = len(ranks) > 1 and len(ranks) == ranks_on[host]
            for group in [ranks] if is_whole_host else [[rank] for rank in ranks]:
                worst_rank = max(group, key=lambda rank: slow_ratios[rank])
                entries = self._slow_entries(worst_rank)
                sample, peers = _mean_sample(entries, worst_rank), medians.excluding(worst_rank, entries)
                cause, evidence = likely_cause(sample, peers)
                reason = self.explain_gpu(worst_rank) if self.explain_gpu and cause == "compute" else ""
                if reason:
                    cause, evidence = "gpu", f"{evidence}: {reason}"
                straggler = Straggler(tuple(group), host, is_whole_host, sample.busy, peers.busy, cause, evidence)
                self._active.update(dict.fromkeys(group, straggler))
                changes.append(StragglerChange(straggler, is_active=True))
        return changes

    def _slow_entries(self, rank: int) -> Sequence[_WindowEntry]:
        """The part of the window in which the rank was slow: it may have become slow within it. All figures of a
        straggler come from these entries.
        """
        return [entry for entry in self._window if entry.ratios[rank] >= self.threshold / 2]


def _mean_sample(entries: Sequence[_WindowEntry], rank: int) -> RankSample:
    samples = [entry.samples[rank] for entry in entries]
    return RankSample(*(sum(getattr(sample, name) for sample in samples) / len(samples) for name in _SAMPLE_FIELDS))


@dataclass(slots=True)
class _PeerMedians:
    """Medians of the peers of a rank, computed once for a group and its entries of the window."""

    peer_groups: Sequence[Hashable]
    _cache: dict[Hashable, dict[str, list[float]]] = field(default_factory=dict)

    def excluding(self, rank: int, entries: Sequence[_WindowEntry]) -> RankSample:
        """The medians over the other ranks of the group, kind by kind, of the means over `entries`."""
        peer_group = self.peer_groups[rank]
        key = (peer_group, *map(id, entries))
        if key not in self._cache:
            members = [other for other, group in enumerate(self.peer_groups) if group == peer_group]
            samples = [_mean_sample(entries, other) for other in members]
            self._cache[key] = {name: sorted(getattr(s, name) for s in samples) for name in _SAMPLE_FIELDS}
        mine, columns = _mean_sample(entries, rank), self._cache[key]
        return RankSample(*(median_excluding(columns[name], getattr(mine, name)) or 0.0 for name in _SAMPLE_FIELDS))


_SAMPLE_FIELDS = ("data", "compute", "io", "host", "work", "faults")


def likely_cause(mine: RankSample, peers: RankSample) -> tuple[StragglerCause, str]:
    """(the cause of most of the difference, its evidence).

    More work than the peers have explains a longer computation if it accounts for at least half of it. Pages read from
    a disk explain a wait for data.
    """
    compute = (mine.compute - mine.io) - (peers.compute - peers.io)
    excess: dict[StragglerCause, float] = {
        "data": mine.data - peers.data,
        "io": mine.io - peers.io,
        "compute": compute,
        "host": mine.host - peers.host,
    }
    cause = max(excess, key=lambda kind: excess[kind])
    if cause == "data":
        text = f"waits {_format_comparison(mine.data, peers.data)} a step for data"
        if mine.faults >= 1 and mine.faults >= 2 * peers.faults:
            return "io", f"{text}, and reads {mine.faults:.0f} pages a step from a disk, its peers {peers.faults:.0f}"
        return "data", text
    if cause == "io":
        return "io", f"is blocked {_format_comparison(mine.io, peers.io)} a step by the disk it swaps to"
    if cause == "host":
        return "host", f"spends {_format_comparison(mine.host, peers.host)} a step outside data and computation"
    text = f"computes {_format_comparison(mine.compute, peers.compute)} a step"
    peer_compute = peers.compute - peers.io
    if peers.work > 0 and peer_compute > 0 and mine.work / peers.work - 1 >= 0.5 * compute / peer_compute:
        return "input_size", f"{text}, for {mine.work / peers.work:.2f} times the work: its rows are longer"
    suffix = f", for {mine.work / peers.work:.2f} times the work" if peers.work > 0 else ""
    return "compute", text + suffix


def _format_comparison(mine: float, peers: float) -> str:
    return f"{format_seconds(mine)} against {format_seconds(peers)}"


def _group_by_host(ranks: Sequence[int], hosts: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        groups[hosts[rank]].append(rank)
    return groups


def _typical_ratio(ratios: Sequence[float]) -> float:
    """The larger of median and mean: the mean reacts sooner, the median is steadier."""
    return max(median(ratios), sum(ratios) / len(ratios))


def median_excluding(sorted_values: Sequence[float], value: float) -> float | None:
    """The median of the sorted values without one `value`; None without other values."""
    count = len(sorted_values) - 1
    if count < 1:
        return None
    value_index = bisect_left(sorted_values, value, 0, bisect_right(sorted_values, value))

    def value_at(index: int) -> float:
        return sorted_values[index if index < value_index else index + 1]

    middle = count // 2
    return value_at(middle) if count % 2 else (value_at(middle - 1) + value_at(middle)) / 2
