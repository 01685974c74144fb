# SPDX-License-Identifier: Apache-2.0
"""A real S3 server (moto's) in a thread of the test, with faults on demand: `Faults.answer` may take a request over."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest

HAS_STORE = all(find_spec(name) is not None for name in ("s3fs", "moto", "flask", "flask_cors"))
needs_store = pytest.mark.skipif(not HAS_STORE, reason="needs the extra stores-test")
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"  # noqa: S105
KEY_ID = "AKIAIOSFODNN7EXAMPLE"
Environ = dict[str, Any]
Answer = Callable[[Environ], "Response | None"]


@dataclass
class Response:
    """What a fault answers. `cut`: close the connection after so many bytes of the body."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


def error(status: int, code: str) -> Response:
    """An error as S3 writes it."""
    body = f"<Error><Code>{code}</Code><Message>{code} of {KEY_ID}</Message></Error>".encode()
    return Response(status, body, {"Content-Type": "application/xml", "x-amz-bucket-region": "eu-west-1"})


@dataclass
class Faults:
    """What goes wrong. `requests` counts method and path of each request."""

    answer: Answer | None = None
    seconds: float = 0.0
    cut_reads: int = 0
    """So many answers to GETs of more than 64 bytes lose their second half."""
    requests: Counter[str] = field(default_factory=Counter)

    def fail(self, times: int, response: Response, method: str = "", path: str = "") -> None:
        """The next requests of this method with this in their path get the response."""
        left = [times]

        def answer(environ: Environ) -> Response | None:
            if left[0] and method in ("", environ["REQUEST_METHOD"]) and path in environ["PATH_INFO"]:
                left[0] -= 1
                return response
            return None

        self.answer = answer


@dataclass
class StoreServer:
    """The server: its endpoint, its faults and a client of its own. `stop` and `start` it at the same port; its keys stay."""

    host: str
    port: int
    faults: Faults
    client: Any = None
    _app: Any = None
    _server: Any = None
    _thread: Any = None

    def start(self) -> None:
        """Accept connections again; at first at a free port."""
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *_: Any) -> None:
                """Nothing: a cut connection is no news."""

        self._server = make_server(self.host, self.port, self._app, threaded=True, request_handler=Quiet)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections; requests that are being answered still are."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """All keys of a bucket."""
        listed = self.client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        return sorted(entry["Key"] for entry in listed.get("Contents", ()))

    def environment(self) -> dict[str, str]:
        """What a program needs to use the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "2",
        }


class _FaultyApp:
    """WSGI: the faults, then moto."""

    def __init__(self, app: Any, faults: Faults) -> None:
        self._app, self._faults = app, faults

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        faults = self._faults
        faults.requests[f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"] += 1
        time.sleep(faults.seconds)
        own = faults.answer(environ) if faults.answer is not None else None
        if own is None:
            return self._of_moto(environ, start_response)
        length = environ.get("CONTENT_LENGTH")
        if length:
            environ["wsgi.input"].read(int(length))
        start_response(f"{own.status} Fault", [*own.headers.items(), ("Content-Length", str(len(own.body)))])
        if environ["REQUEST_METHOD"] == "HEAD":
            return []
        return _cut(own.body, own.cut) if own.cut is not None else [own.body]

    def _of_moto(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        if not self._faults.cut_reads or environ["REQUEST_METHOD"] != "GET" or environ["QUERY_STRING"]:
            return list(self._app(environ, start_response))
        parts = b"".join(self._app(environ, start_response))
        if len(parts) <= 64:
            return [parts]
        self._faults.cut_reads -= 1
        return _cut(parts, len(parts) // 2)


def _cut(body: bytes, size: int) -> Iterator[bytes]:
    yield body[:size]
    raise ConnectionResetError("the test cuts the connection")


@contextmanager
def run_store_server(host: str = "127.0.0.1") -> Iterator[StoreServer]:
    """The server with the bucket `bucket`; about a second to start."""
    import boto3
    from botocore.config import Config
    from moto.server import DomainDispatcherApplication, create_backend_app

    faults = Faults()
    server = StoreServer(host, 0, faults, _app=_FaultyApp(DomainDispatcherApplication(create_backend_app), faults))
    server.start()
    server.client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{server.port}",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106
        config=Config(retries={"max_attempts": 1}),
    )
    server.client.create_bucket(Bucket="bucket")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[StoreServer]:
    """One server for all tests of a process."""
    with run_store_server() as server:
        yield server


@pytest.fixture
def s3(s3_server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreServer]:
    """The server with an empty bucket `bucket` and without faults; this process reaches it as `s3://bucket`."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("harness.object_stores.object_store.FIRST_WAIT_SECONDS", 0.01)
    yield s3_server
    s3_server.faults.__dict__.update(Faults().__dict__)
    for key in s3_server.keys("bucket"):
        s3_server.client.delete_object(Bucket="bucket", Key=key)
