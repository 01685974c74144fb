# SPDX-License-Identifier: Apache-2.0
"""Stragglers are named in time and with their cause, and even noise names nobody: simulated, up to 1,024 ranks. 2 s."""

from __future__ import annotations

import random

import pytest

from harness.runtime.telemetry.stragglers import RankSample, StragglerChange, StragglerDetector, likely_cause

STEP, DATA, WORK = 0.4, 0.02, 1e12
OF_MEDIAN = 0.536
"""Standard deviation of the median of five normal draws, as a share of theirs."""
GATHER = 5


class Cluster:
    """Ranks whose busy time has noise of 5 % a step; a sample is the median of `GATHER` steps, as the ranks send it."""

    def __init__(self, ranks: int, seed: int, hosts: int = 1, stages: int = 1) -> None:
        self._random, self._ranks = random.Random(seed), ranks  # noqa: S311
        names = [f"node-{rank * hosts // ranks}" for rank in range(ranks)]
        self.detector = StragglerDetector(names, [rank * stages // ranks for rank in range(ranks)])
        self.step = 0

    def run(
        self, steps: int, slow: dict[int, float] | None = None, kind: str = "compute"
    ) -> list[tuple[int, StragglerChange]]:
        """Train so many steps while these ranks are slower by so much. Returns the changes with their steps."""
        changes = []
        for _ in range(steps // GATHER):
            samples = [self._make_sample((slow or {}).get(rank, 0.0), kind) for rank in range(self._ranks)]
            self.step += GATHER
            changes += [(self.step, change) for change in self.detector.update(GATHER, samples)]
        return changes

    def _make_sample(self, slowdown: float, kind: str) -> RankSample:
        noise = self._random.gauss(1.0, 0.05 * OF_MEDIAN)
        extra = {kind: (STEP + DATA) * slowdown} if slowdown else {}
        compute = (STEP + extra.get("compute", 0.0) + extra.get("input_size", 0.0) + extra.get("io", 0.0)) * noise
        work = WORK * (1 + slowdown) if kind == "input_size" else WORK
        data = (DATA + extra.get("data", 0.0)) * noise
        return RankSample(data, compute, extra.get("io", 0.0) * noise, extra.get("host", 0.0) * noise, work)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 1000), (3, 1000), (8, 1000), (64, 1000), (1024, 1000)])
def test_noise_of_five_per_cent_names_nobody_in_a_thousand_steps(ranks: int, steps: int) -> None:
    assert Cluster(ranks, seed=ranks).run(steps) == []


@pytest.mark.parametrize("ranks", [2, 3, 8, 1024])
def test_a_rank_25_per_cent_slower_is_named_within_20_steps(ranks: int) -> None:
    for seed in range(20 if ranks < 100 else 1):
        cluster = Cluster(ranks, seed)
        cluster.run(50)
        slow = ranks - 1
        changes = cluster.run(20, {slow: 0.25})
        assert [change.straggler.ranks for _, change in changes] == [(slow,)]
        assert changes[0][0] <= 70
        assert changes[0][1].straggler.slowdown == pytest.approx(0.25, abs=0.09)


def test_one_of_25_per_cent_is_named_within_20_steps_nearly_always() -> None:
    named = []
    for seed in range(100):
        cluster = Cluster(8, seed)
        named.append(bool(cluster.run(20, {3: 0.25})))
    assert sum(named) >= 97


def test_ten_per_cent_is_not_named() -> None:
    assert Cluster(64, 1).run(500, {5: 0.10}) == []


def test_one_long_pause_is_not_named() -> None:
    cluster = Cluster(8, 3)
    cluster.run(50)
    assert cluster.run(5, {2: 3.0}) == []
    assert cluster.run(50) == []


def test_a_straggler_is_reported_once_and_again_when_it_recovers() -> None:
    cluster = Cluster(16, 4)
    assert [c.is_active for _, c in cluster.run(200, {7: 0.5})] == [True]
    (over,) = cluster.run(100)
    assert (over[1].is_active, over[1].straggler.ranks) == (False, (7,))
    assert over[0] <= 225


def test_a_host_is_named_when_all_its_ranks_are_slow() -> None:
    cluster = Cluster(32, 5, hosts=4)
    ((_, change),) = cluster.run(20, dict.fromkeys(range(8, 16), 0.4))
    assert change.straggler.whole_host
    assert change.straggler.host == "node-1"
    assert change.straggler.name == "host node-1 (8 ranks)"
    assert change.straggler.ranks == tuple(range(8, 16))


def test_half_of_a_host_are_so_many_ranks() -> None:
    changes = Cluster(32, 5, hosts=4).run(20, {8: 0.4, 9: 0.4})
    assert sorted(c.straggler.ranks for _, c in changes) == [(8,), (9,)]
    assert not any(c.straggler.whole_host for _, c in changes)


def test_stages_of_a_pipeline_are_not_compared_with_each_other() -> None:
    heavy = dict.fromkeys(range(4, 8), 0.8)
    assert Cluster(8, 6, stages=2).run(200, heavy) == []
    changes = Cluster(8, 6, stages=2).run(20, {**heavy, 6: 1.6})
    assert [c.straggler.ranks for _, c in changes] == [(6,)]


@pytest.mark.parametrize("kind", ["data", "compute", "input_size", "io", "host"])
def test_the_likely_cause(kind: str) -> None:
    changes = Cluster(8, 7).run(20, {1: 0.5}, kind)
    assert [c.straggler.cause for _, c in changes] == [kind]
    assert changes[0][1].straggler.evidence


def test_pages_read_from_a_disk_make_a_wait_for_data_one_for_the_disk() -> None:
    assert likely_cause(RankSample(0.2, 0.4, faults=50), RankSample(0.01, 0.4))[0] == "io"
    assert likely_cause(RankSample(0.2, 0.4), RankSample(0.01, 0.4))[0] == "data"


def test_a_single_rank_and_steps_of_microseconds_have_no_stragglers() -> None:
    assert Cluster(1, 8).run(100, {0: 2.0}) == []
    detector = StragglerDetector(["a", "a"], [0, 0])
    samples = [RankSample(0.0, 1e-4), RankSample(0.0, 5e-4)]
    assert [detector.update(5, samples) for _ in range(10)] == [[]] * 10


def test_the_figures_of_a_straggler_come_from_the_same_steps() -> None:
    """A rank that was 2.5 times as slow for a few steps, and level before: no figure mixes the two."""
    detector = StragglerDetector(["a", "a"], [0, 0])
    level, peers = RankSample(0.002, 0.085), RankSample(0.002, 0.085)
    changes = [detector.update(5, [peers, mine]) for mine in (level, *3 * (RankSample(0.002, 0.170),))]
    (change,) = changes[-1]
    straggler = change.straggler
    assert (straggler.busy_seconds, straggler.peer_seconds) == pytest.approx((0.172, 0.087))
    assert straggler.slowdown == pytest.approx(0.172 / 0.087 - 1)
    assert straggler.lost_seconds == pytest.approx(0.085)
    assert straggler.evidence == "computes 170 ms against 85 ms a step"


def test_a_percentage_and_its_seconds_agree() -> None:
    """Whatever the noise: the share and the seconds of the warning are the same figures."""
    for seed in range(20):
        for _, change in Cluster(2, seed).run(40, {1: 0.4}):
            straggler = change.straggler
            assert straggler.slowdown == pytest.approx(straggler.lost_seconds / straggler.peer_seconds)
            assert straggler.slowdown == pytest.approx(0.4, abs=0.12)
