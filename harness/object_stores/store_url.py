# SPDX-License-Identifier: Apache-2.0
"""URLs of object stores. Imports no package of a store."""

from __future__ import annotations

import re
from typing import NamedTuple

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}
"""The fsspec package of a scheme; others are fsspec's own or found by it."""


class StoreUrl(NamedTuple):
    """`scheme://bucket/path`; `path` has no slash at either end."""

    scheme: str
    bucket: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.path}" if self.path else "")

    def child(self, name: str) -> StoreUrl:
        """The URL of a name below this one."""
        return self._replace(path="/".join(filter(None, (self.path, name))))

    @property
    def parent(self) -> StoreUrl:
        """The URL without its last part."""
        return self._replace(path=self.path.rpartition("/")[0])

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def package(self) -> str:
        """The package that opens it."""
        return _PACKAGES.get(self.scheme, "fsspec")


def is_store_url(text: str) -> bool:
    """Does it name a place in an object store, rather than a path or a name on the Hub?"""
    return _URL.match(text) is not None


def parse_store_url(text: str) -> StoreUrl:
    """The parts of a URL. Raises ValueError, with a reason that does not repeat the URL: it may hold a secret."""
    match = _URL.fullmatch(text)
    if match is None:
        raise ValueError("it is no URL such as `s3://bucket/prefix`")
    scheme, rest = match[1].lower(), match[2]
    bucket, _, path = rest.partition("/")
    if "@" in bucket:
        raise ValueError("it has a user or a key in it, and a spec is copied to run directories, logs and checkpoints")
    if "?" in rest or "#" in rest:
        raise ValueError("it has a query, which may hold a signature")
    if not bucket and scheme not in ("file", "memory"):
        raise ValueError("it names no bucket")
    parts = path.strip("/").split("/")
    if any(part in ("", ".", "..") for part in parts) and path.strip("/"):
        raise ValueError("its path has an empty part, `.` or `..`")
    if any(ord(character) < 32 for character in rest):
        raise ValueError("it has a control character")
    return StoreUrl(scheme, bucket, path.strip("/"))
