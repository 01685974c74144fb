# SPDX-License-Identifier: Apache-2.0
"""Plants of an ordinary user of a shared host for the ranks of another one: prepared data, swap folders, buffers."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.errors import UserError
from harness.nvme_dirs import PREFIX
from harness.runtime import distributed, run_lock
from harness.runtime.dataset import cache
from harness.runtime.dataset.cache import prepare_or_reuse
from tests.security.attempts import Attempt, attempt_param
from tests.support.other_user import MALLORY, give_to_other, needs_root, other_holds, shared_folder
from tests.support.training.data_helpers import TOKENIZER, lines, run_of

pytestmark = [pytest.mark.training, needs_root]


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


def prepare(folder: Path) -> tuple[Path, bool]:
    path = folder / "a.jsonl"
    file = str(path) if path.exists() else lines(path, [{"text": "abc" * 30}])
    place, _, hit = prepare_or_reuse(run_of(folder, train=file, eval_fraction=0.0), TOKENIZER, show_progress=False)
    return place, hit


@Attempt(
    "S62",
    "another user prepares other rows under the name that a run will look for, in a shared cache",
    "the run trains on them",
    "the run prepares its own next to them, and says so",
)
def test_planted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    place, _ = prepare(tmp_path)
    give_to_other(place / "train.npy")
    own, hit = prepare(tmp_path)
    assert (own.name, hit) == (f"{place.name}-{os.geteuid()}", False)
    assert "belongs to another user" in capsys.readouterr().err
    assert prepare(tmp_path) == (own, True)
    monkeypatch.setenv("HARNESS_TRUSTED_ACCOUNTS", str(MALLORY))
    assert prepare(tmp_path) == (place, True)
    monkeypatch.delenv("HARNESS_TRUSTED_ACCOUNTS")
    give_to_other(own)
    with pytest.raises(UserError) as refused:
        prepare(tmp_path)
    assert refused.value.findings[0].gate == "MD129"


@Attempt(
    "S63",
    "another user notes a false checksum of a data file in a shared cache, that of his own rows",
    "the rows of another file are taken",
    "his notes are not read: the folder `files-UID` is this user's",
)
def test_planted_checksum(tmp_path: Path) -> None:
    place, _ = prepare(tmp_path)
    (note,) = (tmp_path / "cache" / "files").iterdir()
    note.write_text("0" * 64)
    assert prepare(tmp_path)[0] != place, "the note decides"
    give_to_other(note)
    assert prepare(tmp_path) == (place, True)


@Attempt(
    "S64",
    "another user opens the lock of a preparation for reading and holds it",
    "every preparation of this data waits for ever, without a word",
    "he cannot open it; a wait for one's own process names it",
)
def test_held_preparation(shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with cache._lock_key(shared / "x.lock"):
        with pytest.raises(AssertionError, match="cannot open"), other_holds(shared / "x.lock"):
            pass
        monkeypatch.setattr(cache.time, "sleep", Mock(side_effect=[None, None, TimeoutError]))
        with pytest.raises(TimeoutError), cache._lock_key(shared / "x.lock"):
            pass
    assert f"waits for process {os.getpid()}" in capsys.readouterr().err


@Attempt(
    "S65",
    "another user plants `own/PID.tmp` in a shared cache, a link to a file of the victim",
    "the records of the plug-in overwrite that file",
    "a name that nobody can foresee",
)
def test_planted_scratch_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".{os.getpid()}.tmp").symlink_to(victim)
    path = cache._write_records([{"text": "a"}], tmp_path)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()


@Attempt(
    "S66",
    "another user plants the temporary folder of a preparation, with links in it",
    "rows are written into it",
    "a name that nobody can foresee, and the folder must be new",
)
def test_planted_scratch_folder(tmp_path: Path) -> None:
    place, _ = prepare(tmp_path)
    shutil.rmtree(place)
    planted = place.with_name(f".{place.name}.{cache.socket.gethostname()}.{os.getpid()}.tmp")
    planted.mkdir()
    give_to_other(planted)
    assert prepare(tmp_path) == (place, False)
    assert list(planted.iterdir()) == []


def lock_swap(folder: Path) -> int:
    """The mode of the swap folder while its run has it."""
    config = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(folder)}}}
    locks = run_lock._lock_swap_folders(Mock(is_local_main_process=True), Mock(ds_config=config))
    mode = stat.S_IMODE(folder.stat().st_mode)
    run_lock.release_locks(locks)
    return mode


def _foreign(folder: Path) -> None:
    give_to_other(folder)


def _open(folder: Path) -> None:
    folder.chmod(0o777)


def _link(folder: Path) -> None:
    folder.rmdir()
    folder.symlink_to(folder.parent)
    give_to_other(folder)


def _disk(folder: Path) -> None:
    folder.parent.chmod(0o777)


@pytest.mark.parametrize(
    "plant",
    [
        attempt_param(
            Attempt(
                "S67",
                "another user makes the swap folder of a run on the local NVMe, with links by the names of swap files",
                "the run swaps there: he reads the weights, and the victim's files are overwritten",
                "EN123 on every rank, before DeepSpeed starts",
            ),
            _foreign,
        ),
        attempt_param(Attempt("S68", "a swap folder that everybody may write", "used", "EN123, with a `chmod`"), _open),
        attempt_param(
            Attempt("S69", "a link of another user in the place of a swap folder", "followed", "EN123"), _link
        ),
        attempt_param(
            Attempt("S70", "an `nvme_path` that everybody may write, without the sticky bit", "used", "EN123"), _disk
        ),
    ],
)
def test_planted_swap_folder(plant: object, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared / "nvme" / f"{PREFIX}demo"
    folder.mkdir(parents=True)
    plant(folder)  # type: ignore[operator]
    with pytest.raises(UserError) as refused:
        lock_swap(folder)
    assert refused.value.findings[0].gate == "EN123"
    monkeypatch.setenv("HARNESS_TRUSTED_ACCOUNTS", "*")
    lock_swap(folder)


@Attempt("S71", "another user reads what a run has swapped", "mode of the umask", "the swap folder has mode 0700")
def test_private_swap_folder(shared: Path) -> None:
    shared.chmod(0o1777)
    folder = shared / f"{PREFIX}demo"
    assert lock_swap(folder) == 0o700
    folder.mkdir(mode=0o755)
    assert lock_swap(folder) == 0o700


@Attempt(
    "S72",
    "another user makes the shared memory of a run on CPUs, by the names that DeepSpeed takes",
    "the ranks exchange their gradients in his file",
    "EN019 before the ranks meet",
)
def test_planted_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29001")
    file = tmp_path / f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_29001_0"
    file.write_text("")
    distributed._verify_shared_memory(tmp_path)
    give_to_other(file)
    with pytest.raises(UserError) as refused:
        distributed._verify_shared_memory(tmp_path)
    assert refused.value.findings[0].gate == "EN019"
