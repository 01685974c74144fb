# SPDX-License-Identifier: Apache-2.0
"""URLs of object stores."""

from __future__ import annotations

import pytest

from harness.object_stores.store_url import is_store_url, parse_store_url


@pytest.mark.parametrize("text", ["s3://bucket/a/b", "gs://bucket", "S3://bucket/a/", "memory://a/b"])
def test_a_url_is_parsed(text: str) -> None:
    assert is_store_url(text)
    assert str(parse_store_url(text)) == text.rstrip("/").replace("S3:", "s3:")


@pytest.mark.parametrize("text", ["texts/a.jsonl", "/data", "owner/name", "builtin:python-docs", "C:/x"])
def test_other_names_are_no_urls(text: str) -> None:
    assert not is_store_url(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3://key:secret@bucket/a", "a user or a key"),
        ("s3://bucket/a?X-Amz-Signature=secret", "a query"),
        ("s3:///a", "no bucket"),
        ("s3://bucket/a/../b", "`..`"),
        ("s3://bucket/a//b", "empty part"),
        ("s3://bucket/a\nb", "control character"),
    ],
)
def test_a_url_that_cannot_be_used_has_a_reason_without_its_text(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        parse_store_url(text)
    assert "secret" not in str(raised.value)


def test_a_child_has_a_parent_and_a_name() -> None:
    url = parse_store_url("s3://bucket/a").child("step-00000001")
    assert (str(url), str(url.parent), url.name) == ("s3://bucket/a/step-00000001", "s3://bucket/a", "step-00000001")
