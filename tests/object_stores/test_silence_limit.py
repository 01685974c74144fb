# SPDX-License-Identifier: Apache-2.0
"""A store that accepts connections and never answers: requests end, and say so."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.object_stores import object_store
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.silence_limit import Transfer, run_with_limit
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url
from tests.support.object_store import KEY_ID, SECRET, StoreServer, needs_store

LIMIT = 0.6
LARGER_THAN_SOCKET_BUFFERS = 24 * 2**20


@pytest.fixture
def silent_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kernel accepts for this listener: nobody reads, nobody answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setattr("harness.object_stores.silence_limit.SILENT_SECONDS", LIMIT)
        monkeypatch.setattr("harness.object_stores.silence_limit.SLOWEST_BYTES_PER_SECOND", 2**40)
        yield "s3://bucket/runs/1"


def open_store(url: str, is_interrupted: Callable[[], bool] = lambda: False) -> ObjectStore:
    return ObjectStore(parse_store_url(url), first_wait=0.01, is_interrupted=is_interrupted)


@needs_store
def test_an_upload_into_silence_ends_and_the_next_one_sooner(
    silent_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, store, request = tmp_path / "file", open_store(silent_store), Mock(wraps=run_with_limit)
    monkeypatch.setattr(object_store, "run_with_limit", request)
    with file.open("wb") as stream:
        stream.truncate(LARGER_THAN_SOCKET_BUFFERS)
    for attempts in (2, 1):
        request.reset_mock()
        start = time.monotonic()
        with pytest.raises(StoreError, match="accepts a request and has not answered for") as raised:
            store.upload("file", file)
        assert raised.value.kind == "silent"
        assert attempts * LIMIT <= time.monotonic() - start < 20
        assert request.call_count == attempts
    with pytest.raises(StoreError, match="has not answered"):
        store.read("run.json", 100)


@needs_store
def test_an_upload_ends_when_it_is_interrupted(silent_store: str, tmp_path: Path) -> None:
    file, interrupted = tmp_path / "file", threading.Event()
    file.write_bytes(b"1")
    threading.Timer(0.2, interrupted.set).start()
    with pytest.raises(StoreError, match="interrupted") as raised:
        open_store(silent_store, interrupted.is_set).upload("file", file)
    assert raised.value.kind == "interrupted"


@needs_store
def test_bytes_are_counted_part_by_part(s3: StoreServer, tmp_path: Path) -> None:
    file, moved, store = tmp_path / "file", list[int](), open_store("s3://bucket/runs/1")
    with file.open("wb") as stream:
        stream.truncate(LARGER_THAN_SOCKET_BUFFERS)
    store.upload("file", file, moved.append)
    assert sum(moved) == LARGER_THAN_SOCKET_BUFFERS
    del moved[:]
    store.download("file", tmp_path / "copy", LARGER_THAN_SOCKET_BUFFERS, moved.append)
    assert sum(moved) == LARGER_THAN_SOCKET_BUFFERS
    folder = open_store(f"file://{tmp_path}/store")
    del moved[:]
    folder.upload("a/file", file, moved.append)
    assert sum(moved) == LARGER_THAN_SOCKET_BUFFERS
    assert (tmp_path / "store" / "a" / "file").stat().st_size == LARGER_THAN_SOCKET_BUFFERS


def test_a_slow_request_that_moves_bytes_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.object_stores.silence_limit.SILENT_SECONDS", LIMIT)
    transfer, moved = Transfer(), list[int]()

    def work() -> str:
        for part in range(1, 9):
            time.sleep(LIMIT / 3)
            transfer.set_moved(part)
        return "done"

    assert run_with_limit(work, transfer, lambda: False, moved.append) == "done"
    assert sum(moved) == 8


def test_bytes_of_a_request_that_fails_are_not_counted() -> None:
    transfer, moved = Transfer(), list[int]()

    def work() -> None:
        transfer.set_moved(5)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        run_with_limit(work, transfer, lambda: False, moved.append)
    assert sum(moved) == 0
