# SPDX-License-Identifier: Apache-2.0
"""Whether the Hub answers, asked of sockets of this machine."""

from __future__ import annotations

import socket
import time

from harness.hostinfo import hub_access
from harness.hostinfo.hub_access import is_hub_unreachable


def test_a_refused_connection_is_seen_at_once():
    began = time.monotonic()
    assert is_hub_unreachable({"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert is_hub_unreachable({"HF_ENDPOINT": "http://127.0.0.1:0"})
    assert time.monotonic() - began < 1


def test_a_name_that_nobody_looks_up_ends_the_wait(monkeypatch):
    monkeypatch.setattr(hub_access, "_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(2) or [])
    began = time.monotonic()
    assert is_hub_unreachable({"HF_ENDPOINT": "https://hub.example"})
    assert time.monotonic() - began < 1


def test_an_answer_a_proxy_and_the_choice_of_the_user_are_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_hub_unreachable({"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}"})
    dead = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert not is_hub_unreachable({**dead, "HTTPS_PROXY": "http://proxy:3128"})
    assert not is_hub_unreachable({**dead, "HF_HUB_OFFLINE": "1"})
