# SPDX-License-Identifier: Apache-2.0
"""Errors of the packages of other stores than S3, as adlfs and gcsfs raise them."""

from __future__ import annotations

import pytest

from harness.object_stores import object_store
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError, to_store_error
from harness.object_stores.store_url import parse_store_url


class HttpResponseError(Exception):
    """As azure.core has it."""

    def __init__(self, error_code: str) -> None:
        super().__init__(error_code)
        self.error_code = error_code


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ContainerNotFound", "no bucket"),
        ("BlobNotFound", "missing"),
        ("AuthorizationPermissionMismatch", "no access"),
        ("ServerBusy", "server error"),
    ],
)
def test_an_error_of_azure_has_a_kind(code: str, kind: str) -> None:
    error = to_store_error(HttpResponseError(code))
    assert (error.kind, error.code) == (kind, code)


def test_a_write_that_finds_no_place_is_a_bucket_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise FileNotFoundError("bucket/key")

    monkeypatch.setattr(ObjectStore, "_open", lambda _: None)
    monkeypatch.setattr(object_store, "_make_folder_and", write)
    with pytest.raises(StoreError, match="the bucket does not exist"):
        ObjectStore(parse_store_url("gs://bucket/a")).write("key", b"1")
