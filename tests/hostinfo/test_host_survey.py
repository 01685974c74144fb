# SPDX-License-Identifier: Apache-2.0
"""The survey made from the answers of hosts. Needs nothing; milliseconds."""

from __future__ import annotations

from ipaddress import IPv4Interface

import pytest

from harness.hostinfo.host_survey import HostFacts, Link, NetworkInterface, Survey, parse_host_facts

RAW = {
    "machine": "boot/net", "hostname": "a", "python": "3.11.7", "packages": {"torch": None}, "code": {"/h": "1", "/l": "2"},
    "accelerators": [{"name": "X", "memory": None}], "cores": 2, "memory": {"total": 5, "available": 4}, "memlock": None,
    "nofile": 1024, "shm": 7, "folders": {"o": {"path": "/o", "exists": True, "writable": True, "free": 1, "filesystem": "nfs"}},
    "marks": {"/m": True}, "compiler": None, "interfaces": [{"name": "eth0", "address": "10.0.0.1", "prefix": 24, "loopback": False}],
    "own_addresses": [], "ports": {"29500": "free"},
}  # fmt: skip


def host(name, *interfaces):
    return HostFacts(name, 1, interfaces=tuple(NetworkInterface(n, IPv4Interface(a), n == "lo") for n, a in interfaces))


def test_one_network_that_all_share_is_the_one():
    survey = Survey(
        (
            host("a", ("lo", "127.0.0.1/8"), ("eth0", "10.0.0.1/24")),
            host("b", ("lo", "127.0.0.1/8"), ("eth0", "10.0.0.2/24")),
        )
    )
    assert (survey.shared_interface, survey.master_address) == ("eth0", "10.0.0.1")


def test_a_bridge_with_one_address_everywhere_is_none():
    both = [host(n, ("docker0", "172.17.0.1/16"), ("eth0", f"10.0.0.{i}/24")) for i, n in enumerate("ab", start=1)]
    assert Survey(tuple(both)).shared_interface == "eth0"


def test_other_names_of_one_network_have_no_common_variable():
    survey = Survey((host("a", ("eth0", "10.0.0.1/24")), host("b", ("ens3", "10.0.0.2/24"))))
    assert (survey.shared_interface, survey.master_address) == (None, "10.0.0.1")


def test_a_network_where_nobody_gets_through_does_not_count():
    hosts = [host(n, ("eth0", f"10.0.0.{i}/24"), ("ib0", f"10.1.0.{i}/24")) for i, n in enumerate("ab", start=1)]
    links = (Link("b", "10.0.0.1", 29500, "ok"), Link("b", "10.1.0.1", 29500, "no answer"))
    assert Survey(tuple(hosts)).shared_interface is None
    assert len(Survey(tuple(hosts)).shared_networks) == 2
    assert Survey(tuple(hosts), links).shared_interface == "eth0"


def test_hosts_that_share_nothing_or_are_alone():
    assert Survey((host("a", ("eth0", "10.0.0.1/24")), host("b", ("eth0", "10.9.0.2/24")))).shared_networks == {}
    assert Survey((host("a", ("eth0", "10.0.0.1/24")),)).shared_interface is None


def test_an_answer_is_read():
    facts = parse_host_facts("a", 4, RAW, 0.5, (0.0, 0.1))
    assert (facts.name, facts.slots, facts.memory_total, facts.accelerators) == ("a", 4, 5, ("X",))
    assert facts.ports == {29500: "free"}
    assert facts.sees_run
    assert facts.code == "1 2"
    assert parse_host_facts("a", 4, RAW | {"code": {"/h": None, "/l": "2"}}, 0, (0, 0)).code is None
    assert not parse_host_facts("a", 4, RAW | {"marks": {"/m": False}}, 0, (0, 0)).sees_run


@pytest.mark.parametrize("key", sorted(RAW.keys() - {"marks", "code"}))
@pytest.mark.parametrize("value", [None, "text", [], {"a": 1}, [1]])
def test_an_answer_of_anything_else_is_refused_or_read(key, value):
    """A host may answer whatever it likes: what cannot be read is one of these errors, which the caller catches."""
    try:
        parse_host_facts("a", 1, RAW | {key: value}, 0.0, (0.0, 0.0))
    except (KeyError, TypeError, ValueError, AttributeError):
        return
