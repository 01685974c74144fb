# SPDX-License-Identifier: Apache-2.0
"""The files that a URL names: one key, a glob, or all keys below a folder."""

from __future__ import annotations

import re

from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_url import StoreUrl

_MAGIC = re.compile(r"[*?[]")


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
