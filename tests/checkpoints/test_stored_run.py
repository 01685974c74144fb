# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a real S3 server: complete or not there, and removed only where a manifest of the run lists the key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import checkpoint_name, find_latest
from harness.checkpoints.manifest import MANIFEST, read_manifest, write_manifest
from harness.checkpoints.store_commands import download_to, upload_folder
from harness.checkpoints.store_source import find_stored_checkpoint
from harness.checkpoints.store_transfer import download_checkpoint, upload_files
from harness.checkpoints.stored_run import PrefixInUseError, StoredRun, prune_store
from harness.checkpoints.verify import verify_checkpoint
from harness.errors import UserError
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_errors import StoreError
from harness.object_stores.store_url import parse_store_url
from harness.spec.sections.checkpoint_spec import CheckpointSpec
from tests.support.object_store import Response, StoreServer, error, needs_store
from tests.support.sample_checkpoints import make

pytestmark = needs_store
URL = "s3://bucket/runs/one"


def open_run(url: str = URL, run_id: str | None = "one-1", resumed: tuple[str, ...] = ()) -> StoredRun:
    stored = StoredRun(ObjectStore(parse_store_url(url), attempts=3))
    if run_id is not None:
        stored.claim(run_id, run_id, resumed)
    return stored


def upload(stored: StoredRun, folder: Path, step: int, run_id: str = "one-1") -> Path:
    """Upload as a run does."""
    path = make(folder, step, run_id=run_id)
    manifest, content = read_manifest(path), (path / MANIFEST).read_bytes()
    stored.begin_upload(step, content)
    upload_files(stored.store, path, path.name, manifest.files)
    stored.publish(step, content)
    return path


def test_a_checkpoint_comes_back_with_the_same_bytes(s3: StoreServer, tmp_path: Path) -> None:
    stored = open_run()
    path = upload(stored, tmp_path / "a", 4)
    upload(stored, tmp_path / "a", 2)
    source, _, skipped = find_stored_checkpoint(URL)
    assert (source.step, source.runs, skipped) == (4, ("one-1",), [])
    target = tmp_path / "b" / "checkpoints" / source.folder_name
    download_checkpoint(open_run(run_id=None), 4, target, checksum=source.checksum)
    files = {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert {p.relative_to(target): p.read_bytes() for p in target.rglob("*") if p.is_file()} == files
    assert find_latest(target.parent, verify="bytes").checkpoint == target
    assert find_stored_checkpoint(f"{URL}/step-00000002")[0].step == 2


def test_without_its_manifest_a_checkpoint_is_not_there(s3: StoreServer, tmp_path: Path) -> None:
    """Killed at every key of an upload: the earlier checkpoint is the newest; then the leftovers go."""
    stored = open_run()
    upload(stored, tmp_path, 1)
    path = make(tmp_path, 2, run_id="one-1")
    manifest, content = read_manifest(path), (path / MANIFEST).read_bytes()
    stored.begin_upload(2, content)
    for name in manifest.files:
        assert find_stored_checkpoint(URL)[0].step == 1
        upload_files(stored.store, path, path.name, {name: manifest.files[name]})
    assert find_stored_checkpoint(URL)[0].step == 1
    assert prune_store(stored, CheckpointSpec(), Evaluations(), newest=3) == [2]
    assert not s3.keys("bucket", "runs/one/step-00000002")
    assert find_stored_checkpoint(URL)[0].step == 1


def test_a_damaged_checkpoint_is_skipped_and_a_named_one_refused(s3: StoreServer, tmp_path: Path) -> None:
    stored = open_run()
    upload(stored, tmp_path, 1)
    upload(stored, tmp_path, 2)
    s3.client.delete_object(Bucket="bucket", Key="runs/one/step-00000002/rank-00000.pt")
    source, _, skipped = find_stored_checkpoint(URL)
    assert source.step == 1
    assert skipped == [f"skipped {URL}/step-00000002: `rank-00000.pt` is missing"]
    with pytest.raises(UserError, match="no complete checkpoint"):
        find_stored_checkpoint(f"{URL}/step-00000002")


def test_other_bytes_of_the_same_size_are_not_downloaded(s3: StoreServer, tmp_path: Path) -> None:
    upload(open_run(), tmp_path, 1)
    s3.client.put_object(Bucket="bucket", Key="runs/one/step-00000001/rank-00000.pt", Body=b"RANDOM1")
    with pytest.raises(StoreError, match="other bytes than were saved"):
        download_checkpoint(open_run(run_id=None), 1, tmp_path / "b" / checkpoint_name(1))
    assert not (tmp_path / "b" / checkpoint_name(1)).exists()


def test_a_file_with_other_bytes_than_were_saved_is_not_uploaded(s3: StoreServer, tmp_path: Path) -> None:
    stored, path = open_run(), make(tmp_path, 1, run_id="one-1")
    (path / "rank-00000.pt").write_bytes(b"RANDOM1")
    with pytest.raises(StoreError, match="other bytes than were saved"):
        upload_files(stored.store, path, path.name, read_manifest(path).files)


@pytest.mark.parametrize("name", ["run.json", "manifest.json", "rank-00000.pt"])
def test_other_bytes_that_come_once_are_read_again(s3: StoreServer, tmp_path: Path, name: str) -> None:
    upload(open_run(), tmp_path / "a", 1)
    times = 2 if name == "rank-00000.pt" else 1
    s3.faults.fail(times, Response(200, b"of another object"), "GET", name)
    source, _, _ = find_stored_checkpoint(URL)
    target = tmp_path / "b" / source.folder_name
    download_checkpoint(open_run(run_id=None), source.step, target, checksum=source.checksum)
    assert find_latest(target.parent, verify="bytes").checkpoint == target


def test_a_link_in_the_place_of_a_download_is_not_followed(s3: StoreServer, tmp_path: Path) -> None:
    path, mine = upload(open_run(), tmp_path / "a", 1), tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("precious")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".tmp-download-step-00000001").symlink_to(mine)
    with pytest.raises(StoreError, match="is a link"):
        download_checkpoint(open_run(run_id=None), 1, tmp_path / "b" / path.name)
    assert [p.name for p in mine.iterdir()] == ["notes"]


@pytest.mark.parametrize("fault", ["500", "cut", "listing"])
def test_a_download_outlives_faults(s3: StoreServer, tmp_path: Path, fault: str) -> None:
    upload(open_run(), tmp_path / "a", 1)
    if fault == "500":
        s3.faults.fail(3, error(500, "InternalError"), "GET", "rank-00000.pt")
    elif fault == "cut":
        s3.faults.cut_reads = 2
    else:  # a listing that has not seen the last hour
        empty = b"<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount></ListBucketResult>"
        s3.faults.answer = lambda e: Response(200, empty) if "list-type" in e["QUERY_STRING"] else None
    source, _, _ = find_stored_checkpoint(URL)
    target = tmp_path / "b" / source.folder_name
    download_checkpoint(open_run(run_id=None), source.step, target)
    assert find_latest(target.parent, verify="bytes").checkpoint == target


def test_a_killed_download_goes_on_where_it_was(s3: StoreServer, tmp_path: Path) -> None:
    path = upload(open_run(), tmp_path / "a", 1)
    part = tmp_path / "b" / ".tmp-download-step-00000001"
    part.mkdir(parents=True)
    (part / "rank-00000.pt").write_bytes((path / "rank-00000.pt").read_bytes())
    (part / "foreign").write_bytes(b"1")
    s3.faults.requests.clear()
    download_checkpoint(open_run(run_id=None), 1, tmp_path / "b" / path.name)
    assert not any("rank-00000.pt" in request for request in s3.faults.requests)
    assert not (tmp_path / "b" / path.name / "foreign").exists()


def test_a_full_disk_ends_a_download_before_its_first_byte(
    s3: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(open_run(), tmp_path / "a", 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(StoreError, match="1,000 free") as raised:
        download_checkpoint(open_run(run_id=None), 1, tmp_path / "b" / checkpoint_name(1))
    assert raised.value.kind == "disk"


def test_retention_removes_what_the_manifest_lists_and_no_neighbour(s3: StoreServer, tmp_path: Path) -> None:
    """Neighbours: another run's prefix, one that begins with the same letters, and foreign keys in our own folders."""
    stored, other = open_run(), open_run("s3://bucket/runs/one-more", "two-1")
    for step in (1, 2, 3, 4):
        upload(stored, tmp_path / "one", step)
        upload(other, tmp_path / "two", step, run_id="two-1")
    foreign = ["runs/one/step-00000001/notes.txt", "runs/one/README", "runs/step-00000001/manifest.json"]
    for key in foreign:
        s3.client.put_object(Bucket="bucket", Key=key, Body=b"1")
    # A checkpoint of another run that somebody copied to our prefix.
    body = s3.client.get_object(Bucket="bucket", Key="runs/one-more/step-00000002/manifest.json")["Body"].read()
    s3.client.put_object(Bucket="bucket", Key="runs/one/step-00000002/manifest.json", Body=body)
    before = set(s3.keys("bucket"))
    spec = CheckpointSpec(save_steps=1, save_total_limit=2)
    assert prune_store(stored, spec, Evaluations(), newest=4) == [1]
    gone = before - set(s3.keys("bucket"))
    listed = read_manifest(tmp_path / "one" / checkpoint_name(1)).files
    assert gone == {f"runs/one/step-00000001/{name}" for name in (*listed, MANIFEST, "files.json")}
    assert prune_store(stored, spec, Evaluations(), newest=4) == []
    assert find_stored_checkpoint("s3://bucket/runs/one-more")[0].step == 4


def test_a_manifest_that_was_edited_in_the_store_removes_nothing(s3: StoreServer, tmp_path: Path) -> None:
    stored = open_run()
    for step in (1, 2):
        upload(stored, tmp_path, step)
    key = "runs/one/step-00000001/manifest.json"
    body = json.loads(s3.client.get_object(Bucket="bucket", Key=key)["Body"].read())
    body["files"]["../../neighbour"] = body["files"]["rank-00000.pt"]
    s3.client.put_object(Bucket="bucket", Key=key, Body=json.dumps(body).encode())
    before = s3.keys("bucket")
    assert prune_store(stored, CheckpointSpec(save_total_limit=1), Evaluations(), newest=2) == []
    assert s3.keys("bucket") == before


def test_a_prefix_belongs_to_one_run_and_to_those_that_resume_it(s3: StoreServer, tmp_path: Path) -> None:
    first = open_run()
    upload(first, tmp_path, 1)
    with pytest.raises(PrefixInUseError, match="`one-1` writes there"):
        open_run(run_id="two-1")
    second = open_run(run_id="two-1", resumed=("one-1",))
    assert second.owner is not None
    assert (second.owner.runs, second.owner.steps) == (("one-1", "two-1"), (1,))
    with pytest.raises(PrefixInUseError, match="the run `two-1` owns it now"):
        first.publish(1, b"")
    upload(second, tmp_path / "two", 2, run_id="two-1")
    assert prune_store(second, CheckpointSpec(save_total_limit=1), Evaluations(), newest=2) == [1]


def test_foreign_keys_make_a_prefix_used(s3: StoreServer) -> None:
    s3.client.put_object(Bucket="bucket", Key="runs/one/data.csv", Body=b"1")
    with pytest.raises(PrefixInUseError, match=r"`data\.csv` already exists"):
        open_run()


def test_the_commands_upload_and_download(s3: StoreServer, tmp_path: Path) -> None:
    path = make(tmp_path / "a" / "checkpoints", 3, run_id="one-1")
    assert upload_folder(tmp_path / "a", URL) == f"{URL}/{path.name}"
    assert upload_folder(path, URL) == f"{URL}/{path.name}"  # again
    assert download_to(URL, tmp_path / "b") == tmp_path / "b" / path.name
    with pytest.raises(UserError, match="already exists"):
        download_to(URL, tmp_path / "b")
    other = make(tmp_path / "c", 1, run_id="two-1")
    with pytest.raises(UserError, match="in use"):
        upload_folder(other, URL)


def test_hosts_without_a_shared_disk_upload_their_own_files(s3: StoreServer, tmp_path: Path) -> None:
    """The last one completes the checkpoint. A file of an earlier save of the step, as large, does not count."""
    whole = make(tmp_path / "whole", 3, run_id="one-1")
    body = json.loads((whole / MANIFEST).read_text())
    shard = "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    body["files"][shard]["node"] = 1
    for node in (0, 1):
        host = tmp_path / f"host-{node}" / "checkpoints" / whole.name
        shutil.copytree(whole, host)
        for name, record in body["files"].items():
            if record["node"] != node:
                (host / name).unlink()
        write_manifest(host, body | {"layout": "per-host", "node": node})
    hosts = [tmp_path / f"host-{node}" / "checkpoints" / whole.name for node in (0, 1)]
    key = f"runs/one/{whole.name}/{shard}"
    for is_first in (True, False):
        with pytest.raises(UserError, match="not yet those of 1 of 2 hosts") as refused:
            upload_folder(hosts[0], URL)
        assert refused.value.findings[0].gate == "ST110"
        assert "host 1, counted from 0" in refused.value.findings[0].notes[0]
        with pytest.raises(UserError, match="no complete checkpoint"):
            download_to(URL, tmp_path / "early")
        if is_first:
            s3.client.put_object(Bucket="bucket", Key=key, Body=bytes(body["files"][shard]["bytes"]))
            s3.client.delete_object(Bucket="bucket", Key=f"runs/one/{whole.name}/files.json")
    assert upload_folder(hosts[1], URL) == f"{URL}/{whole.name}"
    copy = download_to(URL, tmp_path / "copy")
    assert verify_checkpoint(copy) == []
    assert (copy / shard).read_bytes() == (whole / shard).read_bytes()
