# SPDX-License-Identifier: Apache-2.0
"""The report over HTTP: what it answers, and to whom. Needs nothing; a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.views.report.live_server import LivePage, create_server, serve_reports
from tests.support.sample_run import head, step, tiny, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", tiny(), [head(tiny()), step(1)], ("running",))


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    made = create_server([folder], 0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


def get(port: int, path: str, host: str | None = None) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host} if host else {})
    return connection.getresponse()


def test_the_page_knows_its_version_and_asks_its_own_server_alone(port: int) -> None:
    text = get(port, "/").read().decode()
    version = get(port, "/version").read().decode()
    assert f'data-live="{version}"' in text
    assert "connect-src 'self'" in text


def test_nothing_else_is_served(port: int) -> None:
    for path in ("/../spec.yaml", "/metrics.jsonl", "/%2e%2e/spec.yaml", "//etc/passwd", "/?x"):
        assert get(port, path).status == 404


def test_another_site_that_points_its_name_here_is_told_nothing(port: int) -> None:
    assert get(port, "/", host=f"evil.example:{port}").status == 403
    assert get(port, "/", host=f"localhost:{port}").status == 200


def test_the_version_follows_the_run_and_not_its_signs_of_life(folder: Path) -> None:
    live = LivePage([folder])
    version = live.version()
    (folder / "status" / "rank-00000.json").write_text("{}")
    assert live.version() == version
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"type": "end"}\n')
    assert live.version() != version


def test_a_port_that_is_taken_is_refused(folder: Path, port: int) -> None:
    with pytest.raises(UserError, match="is not available"):
        serve_reports([folder], port)
