# SPDX-License-Identifier: Apache-2.0
"""Selection of hosts from a hostfile, a command line or a Slurm job. Needs nothing; a second."""

from __future__ import annotations

import time

import pytest

from harness.spec.host_selection import HostSelection, expand_nodelist, parse_hosts, select_hosts, slurm_hosts
from harness.spec.hostfile import Cluster, parse_hostfile

TWO = Cluster.from_pairs([("a", 4), ("b", 2)])


def left(**chosen):
    cluster, findings = select_hosts(TWO, HostSelection(**chosen))
    assert findings == []
    return [(h.name, list(h.device_ids)) for h in cluster.hosts]


@pytest.mark.parametrize(
    ("chosen", "hosts"),
    [
        ({"include": "b"}, [("b", [0, 1])]),
        ({"include": "b@a:0,2"}, [("a", [0, 2]), ("b", [0, 1])]),
        ({"include": "a:1@a:3,1"}, [("a", [1, 3])]),
        ({"exclude": "a"}, [("b", [0, 1])]),
        ({"exclude": "a:0@b:1"}, [("a", [1, 2, 3]), ("b", [0])]),
        ({"num_nodes": 1}, [("a", [0, 1, 2, 3])]),
        ({"num_gpus": 2}, [("a", [0, 1]), ("b", [0, 1])]),
        ({"num_nodes": 1, "num_gpus": 3}, [("a", [0, 1, 2])]),
    ],
)
def test_what_is_left(chosen, hosts):
    assert left(**chosen) == hosts


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"include": "a,b"}, "`a,b`, which is not in the hostfile"),
        ({"include": "c"}, "names `c`"),
        ({"include": "a:4"}, "slot `4` of `a`, which has 0 to 3"),
        ({"include": "a:"}, "slot ``"),
        ({"include": "a:x"}, "slot `x`"),
        ({"include": "a@"}, "names ``"),
        ({"exclude": "a@b"}, "leaves no host"),
        ({"exclude": "$(touch x)"}, "names `$(touch x)`"),
        ({"include": "a", "exclude": "b"}, "cannot both"),
        ({"include": "a", "num_gpus": 1}, "cannot be combined with"),
        ({"num_nodes": 3}, "the hostfile has 2 hosts"),
        ({"num_nodes": 0}, "`--num-nodes 0`"),
        ({"num_gpus": 3}, "`b` has 2 slots"),
        ({"num_gpus": 0}, "`--num-gpus 0`"),
    ],
)
def test_what_does_not_fit_is_said(chosen, words):
    cluster, findings = select_hosts(TWO, HostSelection(**chosen))
    assert cluster is None
    assert findings[0].gate == "HO024"
    assert words in findings[0].message
    assert findings[0].fix


def test_hosts_on_the_command_line():
    assert [(h.name, h.slots) for h in parse_hosts("a:8,b:4,10.0.0.1")[0].hosts] == [
        ("a", 8),
        ("b", 4),
        ("10.0.0.1", 1),
    ]
    assert [(h.name, h.slots) for h in parse_hosts("n[0-1,4].net:8,b")[0].hosts] == [
        ("n0.net", 8),
        ("n1.net", 8),
        ("n4.net", 8),
        ("b", 1),
    ]
    for text in (
        "n[0-1",
        "n[3-1]:8",
        "n[0-999999]:8",
        "",
        "a:8,",
        "a:x",
        "a:0",
        "a,a",
        "-oProxyCommand=x:1",
        "a b:1",
        "a:1\nb:1",
        "a:1,#b:1",
        "$(x):1",
        "x" * 10**6,
    ):
        cluster, findings = parse_hosts(text)
        assert cluster is None
        assert {f.gate for f in findings} == {"HO025"}
        assert all(len(f.message) < 300 for f in findings)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-02,07],login", ["n01", "n02", "n07", "login"]),
        ("r[1-2]c3,gpu-[098-101]", ["r1c3", "r2c3", "gpu-098", "gpu-099", "gpu-100", "gpu-101"]),
    ],
)
def test_lists_of_nodes(listed, names):
    assert expand_nodelist(listed) == names


@pytest.mark.parametrize(
    "listed", ["n[", "n[]", "n[1-]", "n[3-1]", "n]", "n[a-b]", "n[1-999999999]", "n[1[2]]", ",", "n[1-2]]"]
)
def test_what_is_no_list_of_nodes(listed):
    cluster, findings = slurm_hosts({"SLURM_JOB_NODELIST": listed})
    assert cluster is None
    assert findings[0].gate == "HO026"


def test_the_hosts_of_a_slurm_job():
    nodes = {"SLURM_JOB_NODELIST": "n[1-3]"}

    def slots(**more):
        cluster, findings = slurm_hosts(nodes | more)
        assert findings == []
        return [h.slots for h in cluster.hosts]

    assert slots() == [1, 1, 1]
    assert slots(SLURM_GPUS_PER_NODE="h100:8", SLURM_TASKS_PER_NODE="1(x3)") == [8, 8, 8]
    assert slots(SLURM_GPUS_ON_NODE="4") == [4, 4, 4]
    assert slots(SLURM_TASKS_PER_NODE="4(x2),2") == [4, 4, 2]
    for bad in ({"SLURM_TASKS_PER_NODE": "4(x9)"}, {"SLURM_TASKS_PER_NODE": "4"}, {"SLURM_GPUS_ON_NODE": "$(x)"}):
        assert slurm_hosts(nodes | bad)[1][0].gate == "HO026"
    assert slurm_hosts({})[1][0].message.startswith("`--slurm` is given")


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("node7:8", "write `node7 slots=8`"),
        ("node7", "write `node7 slots=N`"),
        ("node7 slots = 8", "write `node7 slots=8`"),
        ("node7 slots:8", "write `node7 slots=8`"),
        ("node7 Slots=8", "write `node7 slots=8`"),
    ],
)
def test_what_people_paste_from_mpi_is_explained(line, fix):
    cluster, findings = parse_hostfile(line, "h")
    assert cluster is None
    assert findings[0].fix.title == fix


def test_words_of_other_launchers_are_named():
    assert "Open MPI" in parse_hostfile("a slots=8 max_slots=16", "h")[1][0].notes[-1]


def test_lines_of_a_megabyte_are_refused_in_no_time_and_not_shown():
    began = time.process_time()
    for line in (
        "a" * 10**6,
        "a " * 500_000,
        "a" + " " * 10**6 + "x",
        "a slots=" + "9" * 10**6,
        "[" * 10**6,
        "a:" * 500_000,
    ):
        cluster, findings = parse_hostfile(line + "\nb slots=1\n", "h")
        assert cluster is None
        assert len(findings[0].message) < 200
    assert time.process_time() - began < 1
