# SPDX-License-Identifier: Apache-2.0
"""Hostfiles: DeepSpeed's grammar, read strictly."""

from __future__ import annotations

import time

import pytest

from harness.spec.hostfile import parse_hostfile, read_hostfile


def test_hosts_in_the_order_of_ranks():
    cluster, findings = parse_hostfile(
        "# my cluster\nworker-0 slots=8\n\n  10.0.0.2   slots=4 # half\nfe80::1 slots=2\n", "h"
    )
    assert findings == []
    assert [(h.name, h.slots) for h in cluster.hosts] == [("worker-0", 8), ("10.0.0.2", 4), ("fe80::1", 2)]
    assert cluster.num_slots == 14


@pytest.mark.parametrize(
    ("text", "gate", "line", "column"),
    [
        ("", "HO002", 1, 1),
        ("# only\n", "HO002", 1, 1),
        ("a\n", "HO003", 1, 1),
        ("a:8\n", "HO003", 1, 1),
        ("a slots=8x\n", "HO003", 1, 3),
        ("a slots=8 max_slots=16\n", "HO003", 1, 3),
        ("a slots = 8\n", "HO003", 1, 1),
        ("a slots=0\n", "HO003", 1, 3),
        ("a slots=-1\n", "HO003", 1, 3),
        ("a slots=2.5\n", "HO003", 1, 3),
        ("a slots=8\nb slots=8\na slots=8\n", "HO004", 3, 1),
        ("-oProxyCommand=touch${IFS}x slots=1\n", "HO003", 1, 1),
        ("$(reboot) slots=1\n", "HO003", 1, 1),
        ("a;b slots=1\n", "HO003", 1, 1),
    ],
)
def test_a_bad_line_is_found(text, gate, line, column):
    cluster, findings = parse_hostfile(text, "h")
    assert cluster is None
    assert (findings[0].gate, findings[0].place.line, findings[0].place.column) == (gate, line, column)
    assert findings[0].fix


def test_all_bad_lines_are_told():
    _, findings = parse_hostfile("a\nb slots=1\nc slots=x\n", "h")
    assert [f.place.line for f in findings] == [1, 3]


def test_a_user_before_the_name_is_told_and_its_host_counts():
    cluster, findings = parse_hostfile("amd00@192.168.1.10 slots=2\nroot@192.168.1.7 slots=1\n", "h")
    assert [(h.name, h.slots) for h in cluster.hosts] == [("192.168.1.10", 2), ("192.168.1.7", 1)]
    assert [(f.gate, f.place.line, f.place.length) for f in findings] == [("HO003", 1, 18), ("HO003", 2, 16)]
    assert all(f.is_error for f in findings)
    assert "`192.168.1.10 slots=2`" in findings[0].fix.title
    assert "`User amd00`" in findings[0].fix.title
    assert "~/.ssh/config" in findings[0].fix.title


@pytest.mark.parametrize(
    "text",
    ["a@ slots=1\n", "@w slots=1\n", "a@b@c slots=1\n", "-o@w slots=1\n", "a@w slots=x\n", "a@w slots=1\nw slots=1\n"],
)
def test_a_user_without_a_host_or_slots_leaves_no_cluster(text):
    cluster, findings = parse_hostfile(text, "h")
    assert cluster is None
    assert findings[0].gate in ("HO003", "HO004")


def test_a_missing_hostfile_is_an_error(tmp_path):
    cluster, findings = read_hostfile(str(tmp_path / "no"))
    assert cluster is None
    assert findings[0].gate == "HO001"
    assert "alone" in findings[0].notes[0]


def test_ten_thousand_hosts_in_under_a_second():
    text = "\n".join(f"host-{n} slots=8" for n in range(10_000))
    start = time.process_time()
    cluster, _ = parse_hostfile(text, "h")
    assert cluster.num_slots == 80_000
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("line", "gate"),
    [("node-{}", "HO003"), ("same slots=8", "HO004"), ("node-{} slots=8x", "HO003"), ("u@node-{} slots=8", "HO003")],
)
def test_one_mistake_in_thousands_of_lines_is_one_finding(line, gate):
    cluster, findings = parse_hostfile("".join(line.format(i) + "\n" for i in range(4096)), "h")
    assert cluster is None or gate == "HO003"
    assert [finding.gate for finding in findings] == [gate]
    assert "999 or more other lines have the same mistake" in findings[0].notes[-1]


def test_different_mistakes_stay_apart_and_a_few_are_all_named():
    lines = [*(f"a{i}" for i in range(20)), *(f"b{i} slots=x" for i in range(3))]
    _, findings = parse_hostfile("".join(f"{line}\n" for line in lines), "h")
    assert [finding.place.line for finding in findings] == [1, 21, 22, 23]
    assert findings[0].notes[-1] == "19 other lines have the same mistake, such as 2, 3, 4"
