# SPDX-License-Identifier: Apache-2.0
"""The report over HTTP: what it answers, and to whom. Needs nothing; a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.views.report.live_server import LivePage, LiveServer, serve_reports
from tests.support.sample_run import head, step, tiny, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", tiny(), [head(tiny()), step(1)], ("running",))


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    made = LiveServer([folder], 0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def get(server: LiveServer, path: str, **headers: str) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request("GET", f"/{server.token}{path}", headers=headers)
    return connection.getresponse()


def test_the_page_knows_its_version_and_asks_its_own_server_alone(server: LiveServer) -> None:
    text = get(server, "/").read().decode()
    version = get(server, "/version").read().decode()
    assert f'data-live="{version}"' in text
    assert "connect-src 'self'" in text


def test_nothing_else_is_served(server: LiveServer) -> None:
    for path in ("/../spec.yaml", "/metrics.jsonl", "/%2e%2e/spec.yaml", "//etc/passwd", "/?x"):
        assert get(server, path).status == 404


def test_the_version_follows_the_run_and_not_its_signs_of_life(folder: Path) -> None:
    live = LivePage([folder])
    version = live.version()
    (folder / "status" / "rank-00000.json").write_text("{}")
    assert live.version() == version
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"type": "end"}\n')
    assert live.version() != version


def test_a_port_that_is_taken_is_refused(folder: Path, server: LiveServer) -> None:
    with pytest.raises(UserError, match="is not available"):
        serve_reports([folder], server.server_address[1])
