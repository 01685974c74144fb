# SPDX-License-Identifier: Apache-2.0
"""Hostfiles and filters, ours against DeepSpeed's own parser. Needs DeepSpeed; seconds."""

from __future__ import annotations

import itertools
import random

import pytest
from deepspeed.launcher import runner

from harness.spec.host_selection import HostSelection, select_hosts
from harness.spec.hostfile import parse_hostfile

NAMES = ("a", "b", "worker-0", "10.0.0.1")
GOOD = [f"{name} slots={slots}" for name, slots in itertools.product(NAMES, (1, 2, 8))]
ODD = [
    "# c",
    "",
    "  ",
    "a slots=2 # c",
    "a",
    "a:2",
    "a slots=2x",
    "a slots=0",
    "a slots = 2",
    "a slots=2 max_slots=4",
    "A slots=1",
]
STRICTER = {"a slots=2x", "a slots=0", "a slots=2 max_slots=4"}
"""Lines that DeepSpeed reads as something else than they say, and that are refused here."""


def theirs(text):
    try:
        return dict(runner._parse_hostfile(text.splitlines()))
    except ValueError:
        return None


def test_a_file_means_the_same_or_is_refused_by_us_alone_for_a_reason():
    draw = random.Random(7)  # noqa: S311
    agreed = 0
    for _ in range(2000):
        lines = [draw.choice(GOOD if draw.random() < 0.8 else ODD) for _ in range(draw.randint(0, 4))]
        text = "\n".join(lines)
        cluster, _ = parse_hostfile(text, "h")
        if cluster is None:
            assert theirs(text) is None or STRICTER & set(lines), text
        else:
            assert {h.name: h.slots for h in cluster.hosts} == theirs(text), text
            assert [h.name for h in cluster.hosts] == list(theirs(text))
            agreed += 1
    assert agreed > 200


def filtered(pool, chosen):
    """What DeepSpeed makes of a filter, by the steps of its `main`."""
    try:
        active = runner.parse_inclusion_exclusion(pool, chosen.include, chosen.exclude)
        active = runner.apply_num_nodes_and_gpus(active, chosen.num_nodes or -1, chosen.num_gpus or -1)
    except (ValueError, IndexError):
        return None
    return [(name, list(slots)) for name, slots in active.items()]


@pytest.mark.parametrize("kind", ["include", "exclude", "counts"])
def test_a_filter_leaves_the_same_hosts_and_slots(kind):
    draw = random.Random(11)  # noqa: S311
    pool = {"a": 4, "b": 2, "worker-0": 8}
    cluster, _ = parse_hostfile("".join(f"{n} slots={s}\n" for n, s in pool.items()), "h")
    agreed = 0
    for _ in range(1000):
        if kind == "counts":
            chosen = HostSelection(num_nodes=draw.choice([None, 1, 2, 3]), num_gpus=draw.choice([None, 1, 2]))
        else:
            parts = [draw.choice(["a", "b", "worker-0", "c", ""]) for _ in range(draw.randint(1, 3))]
            text = "@".join(p + draw.choice(["", ":0", ":1,0", ":3", ":9", ":0,0"]) for p in parts)
            chosen = HostSelection(**{kind: text})
        ours, findings = select_hosts(cluster, chosen)
        expected = filtered(pool, chosen)
        if ours is None:
            refused_here = "leaves no host" in findings[0].message
            assert not expected or refused_here, (chosen, findings[0].message, expected)
        else:
            assert [(h.name, list(h.device_ids)) for h in ours.hosts] == expected, chosen
            agreed += 1
    assert agreed > 100
