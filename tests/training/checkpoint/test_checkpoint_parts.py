# SPDX-License-Identifier: Apache-2.0
"""The parts of a save that need torch and no ranks: hashing while writing, copies in host memory, the state as JSON."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.errors import UserError
from harness.finding_pages import load_pages
from harness.launching.process.child_process import child_environ
from harness.runtime.checkpoint import (
    commit,
    disk_space,
    hashing_writer,
    host_commit,
    rng_state,
    safe_load,
    saver,
    snapshot,
)
from harness.runtime.checkpoint.hashing_writer import CheckpointFile, tensor_bytes, write_files
from harness.runtime.checkpoint.snapshot import HostSnapshot, StagedCopy
from harness.runtime.train_state import DataPosition, TrainState


def state_dict() -> dict[str, object]:
    """With what occurs: shared memory, views, empty tensors, a module's state, plain values."""
    flat = torch.arange(1000.0)
    module = torch.nn.Linear(4, 4).state_dict()
    return {
        "module": module,
        "flat": flat,
        "views": [flat[:10], flat[10:].view(10, 99).t()],
        "empty": torch.empty(0, dtype=torch.bfloat16),
        "pair": (1, "a", None, 2.5),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }


def test_what_is_recorded_is_what_is_on_the_disk(tmp_path: Path) -> None:
    records = write_files(
        tmp_path, [CheckpointFile("a/b.pt", state_dict()), CheckpointFile("c.json", b"{}")], rank=3, node=1
    )
    for name, record in records.items():
        content = (tmp_path / name).read_bytes()
        assert (record.bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        assert (record.rank, record.node) == (3, 1)
    loaded = safe_load.load_file(tmp_path / "a" / "b.pt")
    assert torch.equal(loaded["views"][1], state_dict()["views"][1])  # type: ignore[index]
    assert safe_load.find_unsafe_globals(tmp_path / "a" / "b.pt") == []
    with pytest.raises(FileExistsError):
        write_files(tmp_path, [CheckpointFile("c.json", b"")], rank=0, node=0)


def test_a_full_device_is_told_as_such(tmp_path: Path) -> None:
    """torch turns what the file raised into an error of its own; the first one counts."""
    file = hashing_writer._HashingFile.__new__(hashing_writer._HashingFile)
    file._file, file._digest = Path("/dev/full").open("wb", buffering=0), hashlib.sha256()  # noqa: SIM115
    file._size, file.error = 0, None
    with pytest.raises((OSError, RuntimeError)):
        torch.save({"w": torch.ones(100_000)}, file)
    file.close()
    assert file.error is not None
    assert file.error.errno == errno.ENOSPC
    finding = disk_space.save_failed_finding(4, tmp_path, 1, file.error, 3 * 2**20)
    assert finding.message.startswith(
        "the checkpoint of step 4 could not be saved on rank 1: no space left on device; it needs 3.00 MiB and a margin of 4.00 MiB, "
    )
    assert finding.message.endswith(f"are free in `{tmp_path}`")
    assert "with a margin of 4 MiB" in load_pages()["CK110"].text


@pytest.mark.parametrize(("missing", "is_full"), [(0, False), (1, True)])
def test_the_margin_is_asked_for(missing: int, is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: 100 + 4 * 2**20 - missing)
    assert (disk_space.disk_full_error(tmp_path, 100) is not None) is is_full


def test_a_copy_is_independent_shares_what_was_shared_and_uses_its_memory_again(tmp_path: Path) -> None:
    original, host = state_dict(), HostSnapshot()
    host.recycle_memory()
    copied = host.copy_of(original)
    host.release_spare_memory()
    pointers = {s.data_ptr() for s in host._used}
    assert copied["flat"].untyped_storage().data_ptr() == copied["views"][0].untyped_storage().data_ptr()
    assert tensor_bytes(copied) == tensor_bytes(original) < 4200
    assert type(copied["module"]) is type(original["module"])
    assert copied["module"]._metadata == original["module"]._metadata  # type: ignore[attr-defined]
    before = copied["views"][1].clone()
    original["flat"].zero_()  # type: ignore[attr-defined]
    assert torch.equal(copied["views"][1], before)
    host.recycle_memory()
    again = host.copy_of(original)
    host.release_spare_memory()
    assert {s.data_ptr() for s in host._used} == pointers
    assert not again["flat"].any()
    (one,) = write_files(tmp_path, [CheckpointFile("copy.pt", again)], 0, 0).values()
    (other,) = write_files(tmp_path, [CheckpointFile("original.pt", original)], 0, 0).values()
    assert one.sha256 == other.sha256 or one.bytes == other.bytes  # torch.save may put a random id into a file


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 17, 40, 43])
def test_a_copy_in_parts_is_whole(size: int) -> None:
    """Parts of 8 bytes, through two buffers in turn."""
    source, target = torch.arange(size, dtype=torch.uint8), torch.full((size,), 255, dtype=torch.uint8)
    staged = StagedCopy(chunk_bytes=8)
    for _ in range(2):
        source += 1
        staged.copy(source, target)
        assert target.equal(source)


def test_a_copy_of_a_device_is_that_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everything was on a device: shared and empty storages, a few bytes, more than a buffer has."""
    monkeypatch.setattr(snapshot, "_is_on_device", lambda _: True)
    monkeypatch.setattr(snapshot.StagedCopy.__init__, "__defaults__", (1000,))
    original = state_dict()
    copied = HostSnapshot().copy_of(original)
    for name in ("flat", "empty", "half"):
        assert copied[name].equal(original[name])
    assert all(a.equal(b) for a, b in zip(copied["views"], original["views"], strict=True))  # type: ignore[call-overload]
    assert copied["flat"].untyped_storage().data_ptr() == copied["views"][0].untyped_storage().data_ptr()


def test_copies_of_a_device_have_no_race() -> None:
    """On the simulated device: the host reads a buffer after the copy to it, and it is filled again after that."""
    job = Path(__file__).parents[1] / "jobs" / "snapshot_races.py"
    environ = child_environ()
    del environ["DS_ACCELERATOR"]
    done = subprocess.run([sys.executable, str(job)], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["races"] == []
    (race, *_) = found["without events"]
    assert "snapshot.py" in race["first"]["line"]
    assert (race["first"]["operator"], race["second"]["stream"]) == ("copy_", "host")
    assert found["device to host"] == [5, 40]


def test_random_states_come_back(tmp_path: Path) -> None:
    import random

    import numpy as np

    write_files(tmp_path, [CheckpointFile("rank.pt", rng_state.get_rng_state())], 0, 0)

    def draw() -> tuple[float, ...]:
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: S311

    first = draw()
    rng_state.set_rng_state(safe_load.load_file(tmp_path / "rank.pt"))
    assert draw() == first


def test_a_state_that_is_read_in_part_is_none() -> None:
    state = TrainState(3, 24, 768, DataPosition(1, 8))
    assert TrainState.from_json(state.to_json()) == state
    assert TrainState.from_json({k: v for k, v in state.to_json().items() if k != "skipped"}) == state
    # One of a version that counted an evaluation before it saved: that of its step is not counted again.
    before = {k: v for k, v in state.to_json().items() if k != "last_eval_step"}
    assert TrainState.from_json(before) == replace(state, last_eval_step=3)
    for wrong in ({"mixture": [1]}, {"position": {"epoch": 1}}, {"position": None}):
        with pytest.raises(ValueError, match="it has the fields"):
            TrainState.from_json({**state.to_json(), **wrong})
    with pytest.raises(ValueError, match="it has the fields"):
        TrainState.from_json({"step": 3})


def test_what_cannot_be_looked_at_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"\x80\x04cos\nsystem\n(S'touch marker'\ntR.")
    with pytest.raises(UserError, match="cannot be read as a shard"):
        safe_load.find_unsafe_globals(tmp_path / "x.pt")
    assert not (tmp_path / "marker").exists()


class Two:
    """Two ranks as one of them sees them: rank 0 has left a mark of this name."""

    def __init__(self, rank: int, mark: str = "") -> None:
        self.rank, self.is_main_process, self.mark = rank, rank == 0, mark

    def all_gather_object(self, value: object) -> list[object]:
        return [value, value] if self.is_main_process else [(self.mark, None), value]

    def barrier(self) -> None:
        pass


def test_a_folder_that_not_all_see_or_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "_WAIT_SECONDS", 0.0)
    saver.check_shared_folder(tmp_path / "checkpoints", Two(0))
    assert list((tmp_path / "checkpoints").iterdir()) == []
    (tmp_path / ".seen-x").touch()
    saver.check_shared_folder(tmp_path, Two(1, ".seen-x"))
    with pytest.raises(UserError, match="rank 1 does not see the") as refused:
        saver.check_shared_folder(tmp_path, Two(1, ".seen-other"))
    assert refused.value.findings[0].gate == "CK116"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"checkpoints cannot be written to .*: not a directory") as refused:
        saver.check_shared_folder(tmp_path / "file" / "checkpoints", Two(0))
    assert refused.value.findings[0].gate == "CK110"


def fail(error: int = errno.EIO) -> None:
    raise OSError(error, "Input/output error")


def test_hosts_publish_a_checkpoint_whose_name_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, final = host_commit.HostDisk(0, True, (0,)), tmp_path / "step-00000002"
    (temporary := tmp_path / ".tmp-step-00000002").mkdir()
    monkeypatch.setattr(host_commit, "fsync_folder", lambda _: fail())
    body = {"format_version": 1, "files": {}}
    outcome = host_commit.publish_on_hosts(temporary, final, body, disk, lambda value: [value])
    assert outcome == (None, (0, (errno.EIO, "Input/output error")))
    assert (final / "manifest.json").exists()


def test_a_host_that_cannot_rename_leaves_no_folder_that_counts_as_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the other host, which renamed its own folder before this one failed."""
    disk, final = host_commit.HostDisk(0, True, (0, 1)), tmp_path / "step-00000002"
    (temporary := tmp_path / ".tmp-step-00000002").mkdir()
    answers = iter([[None, None], [None, (errno.EIO, "Input/output error")]])

    def gather(value: Any) -> Any:
        assert value is None
        return next(answers)

    body = {"format_version": 1, "files": {}}
    outcome = host_commit.publish_on_hosts(temporary, final, body, disk, gather)
    assert outcome == ((1, (errno.EIO, "Input/output error")), None)
    assert not final.exists()


def test_an_older_checkpoint_of_the_step_comes_back_where_the_new_one_cannot_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, final, rename = tmp_path / ".tmp-step-00000002", tmp_path / "step-00000002", Path.rename
    for folder in (temporary, final):
        folder.mkdir()
    (final / "old").touch()
    monkeypatch.setattr(Path, "rename", lambda path, to: fail() if path == temporary else rename(path, to))
    pending = commit.PendingSave(2, temporary, final, {"evaluation": {}}, [], None, None)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Input/output error"):
        commit._publish(pending, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-step-00000002", "step-00000002"]
    assert (final / "old").exists()
