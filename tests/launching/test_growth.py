# SPDX-License-Identifier: Apache-2.0
"""Nothing on the launching host is quadratic in the hosts: instructions are counted for few hosts and for eight times as
many. Needs nothing; seconds.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.hostinfo.host_survey import Link, Survey
from harness.launching.hosts import pdsh_output
from harness.launching.hosts.local_host import LocalHost
from harness.launching.hosts.pdsh_output import PdshDemux
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan, RunTarget, build_launch_plan
from harness.launching.supervise.hang_detector import HangDetector, describe_hang
from harness.launching.supervise.monitor import describe_start_up
from harness.launching.supervise.node_agents import NodeAgent, NodeAgents
from harness.launching.supervise.run_verdict import RankExit, decide_verdict
from harness.run.resolved_run import resolve_run
from harness.run_records.rank_statuses import RankStatus
from harness.runtime.telemetry.stragglers import RankSample, StragglerDetector
from harness.spec.hostfile import Cluster, parse_hostfile
from harness.spec.run_spec import RunSpec
from harness.views.preflight import render_survey, survey_as_json
from harness.views.style import Style
from tests.launching.test_launch_plan import CONFIG, HERE
from tests.support.host_surveys import healthy
from tests.support.operation_count import count_operations

FEW, MORE, RANKS = 24, 192, 4
GROWTH = MORE / FEW


def host_plans(count: int) -> tuple[HostPlan, ...]:
    return tuple(HostPlan(f"h{i}", range(i * RANKS, (i + 1) * RANKS), ()) for i in range(count))


def statuses_of(count: int, state: str = "running") -> dict[int, RankStatus]:
    return {r: RankStatus(r, f"h{r // RANKS}", 1000 + r, state, 3, 1.0) for r in range(count * RANKS)}


def hostfile(count: int, folder: Path) -> Callable[[], object]:
    text = "".join(f"h{i} slots={RANKS}\n" for i in range(count))
    return lambda: parse_hostfile(text, "h")


def wrong_hostfile(count: int, folder: Path) -> Callable[[], object]:
    text = "".join("same slots=4\n" for _ in range(count))
    return lambda: parse_hostfile(text, "h")


def launch_plan(count: int, folder: Path) -> Callable[[], object]:
    spec = RunSpec.model_validate({"zero": {"stage": 3}, "launch": {"launcher": "slurm"}})
    cluster = Cluster.from_pairs([(f"h{i}", RANKS) for i in range(count)])
    here: LocalHost = HERE

    def build() -> object:
        run = resolve_run(spec, name="demo", cluster=cluster)
        plan = build_launch_plan(run, CONFIG, here, RunTarget(Path("/runs/demo-1"), {"hostfile": "h"}))
        return plan.files()

    return build


def survey(count: int, folder: Path) -> Callable[[], object]:
    hosts = tuple(healthy(f"h{i}", RANKS, i % 250 + 1) for i in range(count))
    links = tuple(Link(host.name, "10.0.0.1", port, "ok") for host in hosts[1:] for port in (29500, 40000))
    made = Survey(hosts, links, 29500)
    return lambda: (render_survey(made, Style()), survey_as_json(made, [], 0), made.shared_networks)


def agents_of(count: int, folder: Path) -> NodeAgents:
    plan = LaunchPlan("r", folder, folder, (), host_plans(count), False, 1, (), {})
    agents = NodeAgents(plan, folder, str)
    child = subprocess.Popen(["true"])
    child.wait()
    for host in plan.hosts:
        agent = NodeAgent(host, child, last_heartbeat=time.monotonic(), alive_pids=frozenset())
        agents.agents.append(agent)
    return agents


def agents(count: int, folder: Path) -> Callable[[], object]:
    made, statuses = agents_of(count, folder), statuses_of(count)
    made._first_seen = {(s.rank, s.pid): -100.0 for s in statuses.values()}
    return lambda: (made.find_rank_exits(statuses), made.unreachable_hosts())


def watch(count: int, folder: Path) -> Callable[[], object]:
    detector, statuses = HangDetector(0.0, local=False), statuses_of(count)

    def look() -> None:
        for _ in range(3):
            detector.stalled_seconds(statuses)
            describe_start_up(statuses, count * RANKS)
            describe_hang(statuses, 1.0, local=False)

    return look


def verdict(count: int, folder: Path) -> Callable[[], object]:
    statuses = statuses_of(count)
    exits = [RankExit(s.rank, s.pid, 1.0, 9, reported_by_launcher=True) for s in statuses.values()]
    return lambda: decide_verdict(statuses, count * RANKS, 247, exits, starts_remote_ranks=True)


def output(count: int, folder: Path) -> Callable[[], object]:
    logs = folder / f"logs-{count}"
    logs.mkdir(exist_ok=True)

    def feed() -> None:
        demux = PdshDemux((f"h{i}" for i in range(count)), logs)
        for number in range(3):
            for i in range(count):
                demux.feed(f"h{i}: line {number}")
        demux.close()

    return feed


def stragglers(count: int, folder: Path) -> Callable[[], object]:
    """A third of the hosts becomes slow at once."""
    hosts = [f"h{rank // RANKS}" for rank in range(count * RANKS)]

    def look() -> None:
        detector = StragglerDetector(hosts, [0] * len(hosts))
        for number in range(5):
            slow = 1.0 if number < 2 else 2.0
            detector.update(5, [RankSample(0.1, slow if r // RANKS % 3 == 0 else 1.0) for r in range(len(hosts))])

    return look


@pytest.mark.parametrize(
    "made",
    [hostfile, wrong_hostfile, launch_plan, survey, agents, watch, verdict, output, stragglers],
    ids=lambda made: made.__name__,
)
def test_instructions_grow_with_the_hosts_and_not_with_their_square(made, tmp_path, monkeypatch):
    monkeypatch.setattr(pdsh_output, "_MAX_OPEN_FILES", FEW // 2)  # beyond it a line costs a constant more
    few, more = (count_operations(made(count, tmp_path)) for count in (FEW, MORE))
    assert few > 100
    assert more <= 1.4 * GROWTH * few


def test_the_count_tells_a_square_from_a_line():
    def pairs(count: int) -> int:
        names = [str(i) for i in range(count)]
        return sum(one == other for one in names for other in names)

    few, more = (count_operations(lambda count=count: pairs(count)) for count in (FEW, MORE))
    assert more > 4 * GROWTH * few
