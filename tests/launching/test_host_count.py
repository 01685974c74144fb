# SPDX-License-Identifier: Apache-2.0
"""Launches on thousands of hosts that cannot be started: arguments and open files. Needs nothing; milliseconds."""

from __future__ import annotations

import base64
import json
import resource
import subprocess

import pytest

from harness.launching.setup import host_count
from harness.launching.setup.backends import BACKENDS, backend_args
from harness.launching.setup.host_count import (
    MAX_ARGUMENT_BYTES,
    check_host_count,
    raise_open_file_limit,
    required_open_files,
)
from harness.spec.hostfile import Host


def hosts_of(count: int) -> list[Host]:
    return [Host(f"node-{i:05d}", 8) for i in range(count)]


@pytest.mark.parametrize(
    ("launcher", "count", "is_refused"),
    [
        ("pdsh", 2000, False),
        ("pdsh", 2400, True),
        (None, 2400, False),
        (None, 4096, True),
        ("slurm", 4096, False),
        ("slurm", 16384, True),
        ("openmpi", 16384, False),
    ],
)
def test_the_list_of_hosts_must_fit_into_one_argument(launcher, count, is_refused, monkeypatch):
    monkeypatch.setattr(host_count, "max_open_files", lambda: None)
    findings = list(check_host_count(hosts_of(count), launcher))
    assert [f.gate for f in findings] == ["EN025"] * is_refused


def test_linux_has_this_limit():
    for size, fits in ((MAX_ARGUMENT_BYTES, True), (MAX_ARGUMENT_BYTES + 1, False)):
        try:
            subprocess.run(["true", "x" * size], check=True)
            ran = True
        except OSError as error:
            ran = error.errno != 7
        assert ran is fits


def test_the_size_is_that_of_the_argument_of_deepspeed():
    hosts = hosts_of(3)
    text = json.dumps({host.name: list(range(8)) for host in hosts})
    argument = "--world_info=" + base64.urlsafe_b64encode(text.encode()).decode()
    assert host_count._world_info_bytes(hosts) == len(argument)


def test_too_few_open_files_are_found_before_a_launch(monkeypatch):
    monkeypatch.setattr(host_count, "max_open_files", lambda: 4096)
    (finding,) = check_host_count(hosts_of(1500), "slurm")
    assert finding.message == "a launch on 1,500 hosts has up to 5,012 open files, and this machine allows 4,096"
    assert list(check_host_count(hosts_of(1500), None)) == []


def test_the_limit_is_raised_as_far_as_it_goes(monkeypatch):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    raise_open_file_limit(10)
    raise_open_file_limit(1000)
    raise_open_file_limit(4096)
    assert limits == [(required_open_files(1000), 4096), (4096, 4096)]


def test_pdsh_starts_all_hosts_at_once():
    pairs = [(host.name, host.slots) for host in hosts_of(1025)]
    assert backend_args(BACKENDS["pdsh"], pairs, None) == ["--launcher_args", "-f 1025"]
    assert backend_args(BACKENDS["pdsh"], pairs[:1024], None) == []
