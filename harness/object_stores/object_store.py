# SPDX-License-Identifier: Apache-2.0
"""A prefix of an object store: reads, writes and removals of the keys below it, with retries. Raises StoreError.

A file is there when its upload has ended; what was there before is replaced. Nothing is listed from a cache. After
`expired credentials` the store's package asks its own chain again. A request that moves no byte for a minute fails, and
is tried once more; after that each has one attempt, until the store answers.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.object_stores.silence_limit import LISTING_SECONDS, OnBytes, Transfer, run_with_limit, wait_before_retry
from harness.object_stores.store_errors import StoreError, to_store_error
from harness.object_stores.store_url import StoreUrl

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
import re

T = TypeVar("T")
_VARIABLES = ("AWS_", "AZURE_", "FSSPEC_", "GOOGLE_")
_FILESYSTEMS: dict[tuple[str, int], AbstractFileSystem] = {}
_opening = threading.Lock()
PROBE_PREFIX = ".harness-probe-"
"""The names of keys with which a check asks whether it may write."""
ATTEMPTS = 5
FIRST_WAIT_SECONDS = 0.5
"""The wait before the second attempt; it doubles with each."""
_SILENT_ATTEMPTS = 2
_PART_BYTES, _PARTS_AT_ONCE, _MAX_PARTS = 2**23, 10, 9_000
"""The parts of an upload: a package reports each. S3 takes 10,000."""
_COPY_BYTES = 2**22

_MAGIC = re.compile(r"[*?[]")


class ObjectStore:
    """The keys below one URL. Names are relative to it. Threads may share it. Once `is_interrupted` says so, requests
    end with StoreError `interrupted`.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        attempts: int | None = None,
        first_wait: float | None = None,
        is_interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self._is_interrupted = is_interrupted
        self._is_silent = False
        self._attempts = ATTEMPTS if attempts is None else attempts
        self._first_wait = FIRST_WAIT_SECONDS if first_wait is None else first_wait
        self._root = ""

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a key of at most `limit` bytes; of a larger one, none. One request, whose error has a reason."""
        content: bytes = self._call(name, lambda filesystem, path: filesystem.cat_file(path, start=0, end=limit + 1))
        if len(content) > limit:
            raise StoreError("other", detail=f"it is larger than {limit:,} bytes")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a key, replacing what is there."""
        try:
            self._call(name, lambda filesystem, path: _make_folder_and(filesystem, path, "pipe_file", path, content))
        except StoreError as error:
            if error.kind == "missing":  # as gcsfs says it of a bucket
                raise StoreError("no bucket", error.code) from None
            raise

    def upload(self, name: str, file: Path, on_bytes: OnBytes | None = None) -> None:
        """Upload a file, and compare the size that the store has then. Raises OSError where it cannot be read."""
        size = file.stat().st_size

        def work(filesystem: AbstractFileSystem, path: str, transfer: Transfer) -> None:
            if _is_local(filesystem):
                filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
                _copy_file(file, Path(path), transfer)
            else:
                options = _upload_options(filesystem, size)
                transfer.unreported = _unreported_bytes(filesystem, size, options)
                filesystem.put_file(str(file), path, callback=_to_callback(transfer), **options)
            stored = filesystem.info(path)["size"]
            if stored != size:
                raise StoreError("damaged", detail=f"the store has {stored} bytes of {size} after the upload")

        self._move(name, work, on_bytes)

    def download(self, name: str, file: Path, size: int = 0, on_bytes: OnBytes | None = None) -> None:
        """Write a key of `size` bytes to a new file, or over one that is there."""

        def work(filesystem: AbstractFileSystem, path: str, transfer: Transfer) -> None:
            if _is_local(filesystem):
                _copy_file(Path(path), file, transfer)
            else:
                transfer.unreported = _unreported_bytes(filesystem, size, {})
                filesystem.get_file(path, str(file), callback=_to_callback(transfer))

        self._move(name, work, on_bytes)

    def size(self, name: str) -> int | None:
        """The bytes of a key; None if there is none, such as for a folder."""
        try:
            info = self._call(name, lambda filesystem, path: filesystem.info(path))
            return None if info["type"] == "directory" else int(info["size"] or 0)
        except StoreError as error:
            if error.kind == "missing":
                return None
            raise

    def list_sizes(self, folder: str = "") -> dict[str, int]:
        """All keys below a folder with their bytes. The listing of some stores lags behind writes and removals."""

        def work(filesystem: AbstractFileSystem, path: str) -> dict[str, int]:
            listed = filesystem.find(path, detail=True, refresh=True)
            start = len(self._root) + 1
            return {key[start:]: int(info["size"] or 0) for key, info in listed.items()}

        return self._call(folder, work, LISTING_SECONDS)

    def find_entry(self) -> str | None:
        """A key or a folder below the URL; None if there is none."""

        def work(filesystem: AbstractFileSystem, path: str) -> list[str]:
            return [str(entry).rstrip("/") for entry in filesystem.ls(path, detail=False, refresh=True)]

        try:
            entries = self._call("", work)
        except StoreError as error:
            if error.kind == "missing":
                return None
            raise
        names = (entry[len(self._root) + 1 :] for entry in entries if entry != self._root)
        return next((name for name in names if not name.startswith(PROBE_PREFIX)), None)

    def match(self, pattern: str) -> dict[str, int]:
        """The keys that a glob below the URL matches, with their bytes."""

        def work(filesystem: AbstractFileSystem, path: str) -> dict[str, int]:
            listed = filesystem.glob(path, detail=True)
            start = len(self._root) + 1
            files = {key: info for key, info in listed.items() if info["type"] == "file"}
            return {key[start:]: int(info["size"] or 0) for key, info in files.items()}

        return self._call(pattern, work, LISTING_SECONDS)

    def identity(self, name: str) -> str:
        """A text that changes with the content of a key, as far as the store says: size with ETag or time."""

        def work(filesystem: AbstractFileSystem, path: str) -> str:
            info = filesystem.info(path)
            known = [info.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime")]
            return f"{info['size']} {next((str(value) for value in known if value), '')}"

        return self._call(name, work)

    def remove(self, names: Iterable[str]) -> None:
        """Remove these keys, and no others. One that is not there is no error."""
        for name in names:
            try:
                self._call(name, lambda filesystem, path: filesystem.rm_file(path))
            except StoreError as error:
                if error.kind != "missing":
                    raise

    def _call(self, name: str, work: Callable[[AbstractFileSystem, str], T], silent_seconds: float | None = None) -> T:
        return self._move(name, lambda filesystem, path, _: work(filesystem, path), silent_seconds=silent_seconds)

    def _move(
        self,
        name: str,
        work: Callable[[AbstractFileSystem, str, Transfer], T],
        on_bytes: OnBytes | None = None,
        silent_seconds: float | None = None,
    ) -> T:
        wait = self._first_wait
        for attempt in range(1, self._attempts + 1):
            transfer = Transfer(silent_seconds=silent_seconds)

            def request(transfer: Transfer = transfer) -> T:
                filesystem = self._open()
                return work(filesystem, self._key(name), transfer)

            try:
                answer = run_with_limit(request, transfer, self._is_interrupted, on_bytes)
            except Exception as caught:  # packages of stores raise many types
                error = to_store_error(caught)
                was_silent, self._is_silent = self._is_silent, error.kind == "silent"
                attempts = (1 if was_silent else _SILENT_ATTEMPTS) if self._is_silent else self._attempts
                if not error.is_transient or attempt >= attempts:
                    raise error from None
                if error.kind in ("expired credentials", "silent"):
                    self._close()
            else:
                self._is_silent = False
                return answer
            wait_before_retry(wait, self._is_interrupted)
            wait *= 2
        raise AssertionError("unreachable")

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _open(self) -> AbstractFileSystem:
        from fsspec.core import strip_protocol, url_to_fs

        with _opening:
            key = _cache_key(self.url)
            if key not in _FILESYSTEMS:
                options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
                filesystem, _ = url_to_fs(str(self.url), **options)
                if hasattr(filesystem, "retries"):  # s3fs would retry each of our attempts for most of a minute
                    filesystem.retries = 1
                _FILESYSTEMS[key] = filesystem
            filesystem = _FILESYSTEMS[key]
        self._root = str(strip_protocol(str(self.url))).rstrip("/")
        return filesystem

    def _close(self) -> None:
        """The next request opens the store anew, with the credentials that its chain has then."""
        with _opening:
            _FILESYSTEMS.pop(_cache_key(self.url), None)


def _cache_key(url: StoreUrl) -> tuple[str, int]:
    """A connection is shared by all stores of a scheme, as long as the environment that configures it is the same."""
    variables = ((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    return url.scheme, hash(tuple(sorted(variables)))


def _make_folder_and(filesystem: AbstractFileSystem, path: str, method: str, *arguments: object) -> None:
    """Call a method that writes `path`; a store of files on a disk needs the folder first."""
    if _is_local(filesystem):
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    getattr(filesystem, method)(*arguments)


def _is_local(filesystem: AbstractFileSystem) -> bool:
    return filesystem.protocol in ("file", ("file", "local"))


def _copy_file(source: Path, target: Path, transfer: Transfer) -> None:
    """As fsspec does it for a disk, which reports no bytes."""
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_COPY_BYTES):
            writer.write(chunk)
            transfer.set_moved(transfer.moved + len(chunk))


def _to_callback(transfer: Transfer) -> Any:
    from fsspec.callbacks import Callback

    return Callback(hooks={"bytes": lambda _size, value, **_: transfer.set_moved(int(value or 0))})


def _upload_options(filesystem: AbstractFileSystem, size: int) -> dict[str, int]:
    """Parts of a few MiB, where the package lets its caller choose: it reports bytes part by part."""
    if "chunksize" not in inspect.signature(filesystem.put_file).parameters:
        return {}
    return {"chunksize": _PART_BYTES * -(-size // (_PART_BYTES * _MAX_PARTS)) or _PART_BYTES}


def _unreported_bytes(filesystem: AbstractFileSystem, size: int, options: dict[str, int]) -> int:
    """The most that is moved between two reports. A package that is no asynchronous one may report none."""
    if not getattr(filesystem, "async_impl", False):
        return size
    return min(size, _PARTS_AT_ONCE * options.get("chunksize", _PART_BYTES))


def static_parent(url: StoreUrl) -> StoreUrl:
    """The folder that holds all that the URL names, as far as it is fixed."""
    magic = _MAGIC.search(url.path)
    fixed = url.path if magic is None else url.path[: magic.start()]
    return url._replace(path=fixed.rpartition("/")[0])


def find_files(store: ObjectStore, url: StoreUrl) -> dict[str, int]:
    """The keys that the URL names, relative to `static_parent`, with their bytes. Raises StoreError."""
    start = len(store.url.path) + 1 if store.url.path else 0
    name = url.path[start:]
    if _MAGIC.search(name):
        return store.match(name)
    size = store.size(name) if name else None
    return store.list_sizes(name) if size is None else {name: size}
