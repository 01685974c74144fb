# SPDX-License-Identifier: Apache-2.0
"""Stores that cannot be used: one finding each, before a rank starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.store_export import upload_export
from harness.checkpoints.stored_run import StoredRun
from harness.findings import Finding
from harness.launching.setup import store_checks
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_url import parse_store_url
from harness.spec.run_spec import RunSpec
from tests.support.object_store import KEY_ID, SECRET, Response, StoreServer, error, needs_store

pytestmark = needs_store
URL = "s3://bucket/runs/one"


def spec(**sections: Any) -> RunSpec:
    return RunSpec.model_validate({"model": {"name_or_path": "m"}, **sections})


def check_stores(checked: RunSpec, resumed_runs: tuple[str, ...] = (), *, read_only: bool = False) -> list[Finding]:
    urls = checked.store_urls
    return store_checks.check_stores(urls, checked.launch.env, resumed_runs, read_only=read_only)


def upload_to(url: str = URL) -> RunSpec:
    return spec(checkpoint={"upload_to": url})


def test_stores_that_can_be_used_have_no_finding_and_nothing_is_left(s3: StoreServer) -> None:
    s3.client.put_object(Bucket="bucket", Key="texts/a.jsonl", Body=b"{}")
    checked = spec(
        checkpoint={"upload_to": URL},
        export={"upload_to": "s3://bucket/models/one", "at_end": True},
        data={"train": ["s3://bucket/texts/*.jsonl", "s3://bucket/texts/a.jsonl"], "eval": "s3://bucket/texts"},
    )
    assert check_stores(checked) == []
    assert s3.keys("bucket") == ["texts/a.jsonl"]
    assert any(request.startswith("PUT") for request in s3.faults.requests)


def test_a_dry_run_writes_nothing(s3: StoreServer) -> None:
    s3.faults.requests.clear()
    assert check_stores(upload_to(), read_only=True) == []
    assert not any(request.startswith(("PUT", "DELETE", "POST")) for request in s3.faults.requests)


@pytest.mark.parametrize(
    ("response", "gate"),
    [
        (error(403, "AccessDenied"), "ST102"),
        (error(403, "InvalidAccessKeyId"), "ST102"),
        (error(400, "ExpiredToken"), "ST103"),
        (error(301, "PermanentRedirect"), "ST104"),
        (error(400, "AuthorizationHeaderMalformed"), "ST104"),
        (error(503, "SlowDown"), "ST105"),
    ],
)
def test_a_store_that_refuses_is_one_finding_without_a_secret(s3: StoreServer, response: Response, gate: str) -> None:
    s3.faults.fail(10**6, response)
    (finding,) = check_stores(upload_to())
    assert (finding.gate, finding.key, finding.is_error) == (gate, "checkpoint.upload_to", True)
    assert finding.fix is not None
    assert finding.notes
    assert KEY_ID not in str(finding)
    assert SECRET not in str(finding)


def test_a_prefix_that_may_be_read_and_not_written(s3: StoreServer) -> None:
    s3.faults.fail(10**6, error(403, "AccessDenied"), "PUT")
    assert [f.gate for f in check_stores(upload_to())] == ["ST102"]


def test_a_bucket_that_is_not_there(s3: StoreServer) -> None:
    assert [f.gate for f in check_stores(upload_to("s3://no-such-bucket/one"))] == ["ST101"]
    assert [f.gate for f in check_stores(upload_to("s3://no-such-bucket/one"), read_only=True)] == ["ST101"]


def test_no_credentials(s3: StoreServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert [f.gate for f in check_stores(upload_to())] == ["ST103"]


def test_variables_of_launch_env_count(s3: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = s3.environment()["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    checked = spec(checkpoint={"upload_to": URL}, launch={"env": {"AWS_ENDPOINT_URL": endpoint}})
    assert check_stores(checked) == []


def test_a_store_that_does_not_answer(s3: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert [f.gate for f in check_stores(upload_to())] == ["ST105"]


def test_a_prefix_of_another_run_is_in_use_and_that_of_a_resumed_one_is_not(s3: StoreServer) -> None:
    StoredRun(ObjectStore(parse_store_url(URL))).claim("one-1", "one", ())
    (finding,) = check_stores(upload_to())
    assert finding.gate == "ST106"
    assert finding.fix is not None
    assert f"--resume {URL}" in finding.fix.title
    assert check_stores(upload_to(), ("one-1",)) == []


def test_the_export_of_a_resumed_run_is_not_in_the_way(s3: StoreServer, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    upload_export(tmp_path, URL, runs=["one-1"])
    export = spec(export={"upload_to": URL, "at_end": True})
    assert [finding.gate for finding in check_stores(export)] == ["ST106"]
    assert check_stores(export, ("two-1", "one-1")) == []


@pytest.mark.parametrize("section", ["checkpoint", "export"])
def test_foreign_keys_below_a_prefix(s3: StoreServer, section: str) -> None:
    s3.client.put_object(Bucket="bucket", Key="runs/one/notes.txt", Body=b"1")
    settings = {section: {"upload_to": URL, **({"at_end": True} if section == "export" else {})}}
    (finding,) = check_stores(spec(**settings))
    assert (finding.gate, finding.key) == ("ST106", f"{section}.upload_to")


def test_data_that_is_not_there(s3: StoreServer) -> None:
    (finding,) = check_stores(spec(data={"train": "s3://bucket/texts/*.jsonl"}))
    assert (finding.gate, finding.key) == ("ST109", "data.train")


def test_a_package_that_is_not_installed() -> None:
    (finding,) = check_stores(upload_to("adl://bucket/one".replace("adl", "abfs")))
    assert finding.gate == "ST100"
    assert "adlfs" in str(finding.fix)
