# SPDX-License-Identifier: Apache-2.0
"""Names that mean this machine, whatever the name server does."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from harness.hostinfo.machine import find_local_names


@pytest.fixture
def name_server(monkeypatch):
    """One that knows two names and that there is no third, and does not answer for any other until the test ends."""
    ends, requests = threading.Event(), []
    addresses = {"alias": "127.0.0.1", "other": "192.0.2.1"}

    def look_up(name, port, **_):
        requests.append(name)
        if name == "nobody":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if name not in addresses:
            ends.wait(60)
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (addresses.get(name, "127.0.0.1"), port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield requests
    ends.set()


def test_own_names_are_not_looked_up(name_server):
    own = socket.gethostname()
    assert find_local_names([own, "localhost", "[::1]"]) == ({own, "localhost", "[::1]"}, [])
    assert name_server == []


def test_a_name_that_is_bound_here_means_this_machine(name_server):
    assert find_local_names(["alias", "other", "nobody"]) == ({"alias"}, [])


def test_a_name_that_nobody_can_be_asked_for_is_another_machine():
    assert find_local_names(["a..b", "x" * 70], 5.0) == (set(), [])


def test_all_names_together_have_one_time_limit(name_server):
    before, began = threading.active_count(), time.monotonic()
    silent = [f"silent-{n}" for n in range(4096)]
    found, unresolved = find_local_names(["alias", *silent, "alias"], 0.5)
    assert time.monotonic() - began < 5
    assert (found, unresolved) == ({"alias"}, silent)
    assert threading.active_count() - before <= 64
    assert len(name_server) <= 65
