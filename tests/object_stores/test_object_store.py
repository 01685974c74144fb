# SPDX-License-Identifier: Apache-2.0
"""Requests to a real S3 server that fails in all the ways in which one can."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url
from tests.support.object_store import KEY_ID, SECRET, Response, StoreServer, error, needs_store

pytestmark = needs_store


def open_store(url: str = "s3://bucket/runs/1", attempts: int = 5) -> ObjectStore:
    return ObjectStore(parse_store_url(url), attempts=attempts, first_wait=0.01)


def test_bytes_come_back(s3: StoreServer, tmp_path: Path) -> None:
    store, file = open_store(), tmp_path / "file"
    file.write_bytes(b"x" * 100_000)
    store.upload("a/file", file)
    store.write("a/b/small", b"1")
    assert store.list_sizes() == {"a/file": 100_000, "a/b/small": 1}
    assert store.size("a/file") == 100_000
    assert store.size("nothing") is None
    store.download("a/file", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    store.remove(["a/file", "nothing"])
    assert s3.keys("bucket") == ["runs/1/a/b/small"]
    assert store.find_entry() == "a"
    assert open_store("s3://bucket/other").find_entry() is None


@pytest.mark.parametrize(
    ("response", "times"), [(error(500, "InternalError"), 3), (error(503, "SlowDown"), 2), (error(500, ""), 1)]
)
def test_errors_that_pass_are_outlived(s3: StoreServer, response: Response, times: int) -> None:
    s3.faults.fail(times, response, "PUT")
    open_store().write("a", b"1")
    assert s3.keys("bucket") == ["runs/1/a"]


def test_a_cut_connection_is_outlived(s3: StoreServer, tmp_path: Path) -> None:
    store = open_store()
    store.write("a", b"x" * 50_000)
    s3.faults.cut_reads = 2
    store.download("a", tmp_path / "a")
    assert (tmp_path / "a").stat().st_size == 50_000
    assert s3.faults.cut_reads == 0


def test_expired_credentials_are_asked_for_again(s3: StoreServer) -> None:
    store = open_store()
    store.write("a", b"1")
    s3.faults.fail(1, error(400, "ExpiredToken"), "PUT")
    before = store._open()
    store.write("b", b"1")
    assert store._open() is not before
    assert s3.keys("bucket") == ["runs/1/a", "runs/1/b"]


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (error(403, "AccessDenied"), "no access"),
        (error(403, "InvalidAccessKeyId"), "no access"),
        (error(400, "ExpiredToken"), "expired credentials"),
        (error(400, "AuthorizationHeaderMalformed"), "wrong region"),
        (error(503, "SlowDown"), "server error"),
    ],
)
def test_errors_that_stay_have_a_kind_and_no_secret(s3: StoreServer, response: Response, kind: str) -> None:
    s3.faults.fail(10**6, response)
    with pytest.raises(StoreError) as raised:
        open_store(attempts=1).write("a", b"1")
    assert raised.value.kind == kind
    assert not {KEY_ID, SECRET} & set(str(raised.value).replace("`", " ").split())


def test_a_bucket_that_is_not_there(s3: StoreServer) -> None:
    with pytest.raises(StoreError) as raised:
        open_store("s3://no-such-bucket/a").write("a", b"1")
    assert raised.value.kind == "no bucket"


def test_a_store_that_does_not_answer(s3: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:password@127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StoreError) as raised:
        open_store(attempts=1).write("a", b"1")
    assert raised.value.kind == "unreachable"
    assert "password" not in str(raised.value)


def test_a_partial_upload_is_seen(s3: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    store = open_store(attempts=2)
    filesystem = store._open()

    def put_half(source: str, path: str, **_: object) -> None:
        filesystem.pipe_file(path, Path(source).read_bytes()[:500])

    monkeypatch.setattr(filesystem, "put_file", put_half)
    with pytest.raises(StoreError, match="500 bytes of 1000") as raised:
        store.upload("file", file)
    assert raised.value.kind == "damaged"
