# SPDX-License-Identifier: Apache-2.0
"""The upload of an exported folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.checkpoints.store_commands import upload_folder
from harness.checkpoints.store_export import EXPORT_MANIFEST, exporting_run, upload_export
from harness.checkpoints.store_transfer import sha256_of
from harness.errors import UserError
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url
from tests.support.object_store import StoreServer, error, needs_store

pytestmark = needs_store
URL = "s3://bucket/models/one"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "export" / "sub").mkdir(parents=True)
    (tmp_path / "export" / "config.json").write_text("{}")
    (tmp_path / "export" / "sub" / "model.safetensors").write_bytes(b"x" * 1000)
    return tmp_path / "export"


def test_the_last_key_lists_all_others(s3: StoreServer, export: Path) -> None:
    upload_export(export, URL)
    names = {"config.json", "sub/model.safetensors"}
    assert set(s3.keys("bucket")) == {f"models/one/{name}" for name in (*names, EXPORT_MANIFEST)}
    body = json.loads(s3.client.get_object(Bucket="bucket", Key=f"models/one/{EXPORT_MANIFEST}")["Body"].read())
    assert body["files"] == {
        name: {"bytes": (export / name).stat().st_size, "sha256": sha256_of(export / name)} for name in names
    }
    with pytest.raises(StoreError, match="already exists"):
        upload_export(export, URL)


def test_an_upload_that_fails_has_no_last_key(s3: StoreServer, export: Path) -> None:
    s3.faults.fail(10**6, error(403, "AccessDenied"), "PUT", "safetensors")
    with pytest.raises(StoreError, match="access is denied"):
        upload_export(export, URL)
    assert f"models/one/{EXPORT_MANIFEST}" not in s3.keys("bucket")


def test_an_upload_that_failed_is_repeated_by_the_command(s3: StoreServer, export: Path) -> None:
    s3.faults.fail(10**6, error(403, "AccessDenied"), "PUT", "safetensors")
    with pytest.raises(StoreError):
        upload_export(export, URL)
    s3.faults.answer = None
    assert upload_folder(export, URL) == URL
    names = {"config.json", "sub/model.safetensors", EXPORT_MANIFEST}
    assert set(s3.keys("bucket")) == {f"models/one/{name}" for name in names}


def test_files_of_the_same_names_that_somebody_put_there_stay(s3: StoreServer, export: Path) -> None:
    s3.client.put_object(Bucket="bucket", Key="models/one/config.json", Body=b"of somebody")
    with pytest.raises(UserError, match="already exists"):
        upload_folder(export, URL)
    assert s3.client.get_object(Bucket="bucket", Key="models/one/config.json")["Body"].read() == b"of somebody"


def test_a_run_that_continues_another_replaces_its_export(s3: StoreServer, export: Path) -> None:
    """Whole or begun; what it has no more goes, and nobody else may."""
    upload_export(export, URL, runs=["one-1"])
    (export / "config.json").write_text('{"later": 1}')
    (export / "sub" / "model.safetensors").rename(export / "sub" / "other.safetensors")
    with pytest.raises(StoreError, match="already exists"):
        upload_export(export, URL, runs=["two-1"])
    s3.faults.fail(10**6, error(403, "AccessDenied"), "PUT", "safetensors")
    with pytest.raises(StoreError, match="access is denied"):
        upload_export(export, URL, runs=["two-1", "one-1"])
    assert exporting_run(ObjectStore(parse_store_url(URL))) == "two-1"
    s3.faults.answer = None
    (export / "config.json").rename(export / "adapter_config.json")
    upload_export(export, URL, runs=["three-1", "two-1"])
    names = {"adapter_config.json", "sub/other.safetensors", EXPORT_MANIFEST}
    assert set(s3.keys("bucket")) == {f"models/one/{name}" for name in names}
    body = json.loads(s3.client.get_object(Bucket="bucket", Key=f"models/one/{EXPORT_MANIFEST}")["Body"].read())
    assert (body["run_id"], set(body["files"])) == ("three-1", names - {EXPORT_MANIFEST})
