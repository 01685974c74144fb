# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of a prefix that a resume takes after a rollback, in a store that is a folder. Milliseconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.manifest import MANIFEST, read_manifest
from harness.checkpoints.store_commands import upload_folder
from harness.checkpoints.store_source import SOURCE_FILE, StoreSource, find_stored_checkpoint
from harness.checkpoints.store_transfer import upload_files
from harness.checkpoints.stored_run import OWNER, RunStep, StoredRun, prune_store
from harness.errors import UserError
from harness.launching.supervise.own_disks import find_stored_resume
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_url import parse_store_url
from harness.spec.sections.checkpoint_spec import CheckpointSpec
from tests.support.sample_checkpoints import make


class Prefix:
    """A prefix, and the runs that upload to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url, self.stores = folder, f"file://{folder}/store", list[StoredRun]()

    def run(self, run_id: str, *steps: int, came_from: tuple[RunStep, ...] = ()) -> StoredRun:
        """A run that resumed from the prefix takes it, and uploads these steps."""
        stored = StoredRun(ObjectStore(parse_store_url(self.url)))
        owner = stored.read_owner()
        stored.claim(run_id, run_id.rpartition("-")[0], owner.runs if owner and came_from else (), came_from)
        for step in steps:
            path = make(self.folder / run_id, step, run_id=run_id)
            content = (path / MANIFEST).read_bytes()
            stored.begin_upload(step, content)
            upload_files(stored.store, path, path.name, read_manifest(path).files)
            stored.publish(step, content)
        return stored

    def chosen(self) -> tuple[str, int]:
        """The run and the step that a resume takes."""
        source, manifest, _ = find_stored_checkpoint(self.url)
        assert source.run_id == manifest.get("run_id")
        return source.run_id, source.step

    def forget_origins(self) -> None:
        """As an older release wrote `run.json`."""
        file = self.folder / "store" / OWNER
        body = json.loads(file.read_text())
        del body["origins"]
        file.write_text(json.dumps(body))


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    return Prefix(tmp_path)


def test_a_rollback_abandons_the_newer_checkpoints(prefix: Prefix) -> None:
    prefix.run("a-1", 200, 300, 400, 600)
    prefix.run("b-1", 400, came_from=(("a-1", 200),))
    assert prefix.chosen() == ("b-1", 400)
    (line,) = find_stored_checkpoint(prefix.url)[2]
    assert line.endswith("step-00000600: it is of the run `a-1`, and `b-1` resumed before it")
    assert find_stored_checkpoint(f"{prefix.url}/step-00000600")[0].run_id == "a-1", "a named one is taken"
    prefix.run("c-1", 500, came_from=(("b-1", 400),))
    assert prefix.chosen() == ("c-1", 500)
    prefix.run("d-1", came_from=(("a-1", 200),))  # back once more, and killed before its first upload was complete
    assert prefix.chosen() == ("a-1", 200)


def test_what_a_run_came_from_counts_by_each_step_of_the_way(prefix: Prefix) -> None:
    prefix.run("a-1", 100, 200, 300)
    prefix.run("b-1", 250, 350, came_from=(("a-1", 200),))
    prefix.run("c-1", came_from=(("b-1", 250),))
    assert prefix.chosen() == ("b-1", 250)
    store = prefix.folder / "store"
    (store / "step-00000250" / MANIFEST).unlink()
    assert prefix.chosen() == ("a-1", 200)


def test_a_run_that_never_uploaded_does_not_break_the_lineage(prefix: Prefix) -> None:
    """b saved on its disk alone; after it lost a host its files were written again, and it is b-2."""
    prefix.run("a-1", 200, 600)
    prefix.run("b-2", came_from=(("b-1", 300), ("a-1", 200)))
    assert prefix.chosen() == ("a-1", 200)


def test_the_command_uploads_a_run_whose_own_uploads_never_began(prefix: Prefix) -> None:
    """`launch.json` has where it came from: the prefix is its own then, and its checkpoint the newest."""
    prefix.run("a-1", 200, 300)
    own = make(prefix.folder / "b" / "checkpoints", 250, run_id="b-1")
    with pytest.raises(UserError, match="in use"):
        upload_folder(own, prefix.url)
    resumed = prefix.folder / "a-1" / "step-00000200"
    (prefix.folder / "b" / "launch.json").write_text(json.dumps({"resume": str(resumed)}))
    upload_folder(own, prefix.url)
    assert prefix.chosen() == ("b-1", 250)


def test_without_a_lineage_the_owner_is_taken_or_all_are_named(prefix: Prefix) -> None:
    prefix.run("a-1", 200, 600)
    prefix.run("b-1", 400, came_from=(("a-1", 200),))
    prefix.forget_origins()
    with pytest.raises(UserError, match="does not say") as refused:
        prefix.chosen()
    (finding,) = refused.value.findings
    assert finding.gate == "CK134"
    assert finding.notes[1:] == (
        "`step-00000400` is of the run `b-1`",
        "`step-00000600` is of the run `a-1`",
    )
    prefix.run("b-1", 700)
    assert prefix.chosen() == ("b-1", 700)


def test_abandoned_checkpoints_are_not_counted_among_the_newest(prefix: Prefix) -> None:
    prefix.run("a-1", 200, 300, 600)
    stored = prefix.run("b-1", 400, came_from=(("a-1", 200),))
    spec = CheckpointSpec(save_steps=1, save_total_limit=2)
    assert prune_store(stored, spec, Evaluations(), newest=400) == [300]
    assert StoredRun(stored.store).complete_steps() == [600, 400, 200]


def test_hosts_with_disks_of_their_own_restart_from_their_own_lineage(prefix: Prefix) -> None:
    prefix.run("a-1", 200, 600)
    run_dir = prefix.folder / "b"
    run_dir.mkdir()
    body = {"spec": {"checkpoint": {"upload_to": prefix.url}}}
    (run_dir / "spec.resolved.json").write_text(json.dumps(body))
    assert find_stored_resume(run_dir, {}, print) is None, "it began at step 0"
    source = find_stored_checkpoint(f"{prefix.url}/step-00000200")[0]
    (run_dir / SOURCE_FILE).write_text(source.to_text())
    assert StoreSource.read(run_dir) == source
    assert find_stored_resume(run_dir, {}, print) == run_dir / "checkpoints" / "step-00000200"
    prefix.run("b-1", 400, came_from=(("a-1", 200),))
    assert find_stored_resume(run_dir, {}, print) == run_dir / "checkpoints" / "step-00000400"
