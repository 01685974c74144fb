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
