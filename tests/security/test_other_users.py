# SPDX-License-Identifier: Apache-2.0
"""Plants of an ordinary user of a shared host: swap folders, runs, locks, buffers, job scripts."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.errors import UserError
from harness.file_io import write_atomically
from harness.launching.process import shm
from harness.launching.setup.environment import SECRETS_FILE
from harness.launching.setup.resume import ResumeSource
from harness.launching.setup.run_dir import replace_files
from harness.launching.setup.slurm import SlurmJob, build_job, submit_job
from harness.locks import Lock, LockHeld, current_holder
from harness.nvme_dirs import LOCK, PREFIX, remove_stale_swap_dirs
from tests.launching.test_resume import resume, runs, save
from tests.security.attempts import Attempt, attempt_param
from tests.support.other_user import MALLORY, give_to_other, needs_root, other_holds, shared_folder

pytestmark = needs_root
__all__ = ["runs"]


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


@Attempt(
    "S52",
    "another user plants a swap folder that looks like a killed run's",
    "its lock is taken and written, its files are removed",
    "left alone",
)
def test_planted_stale_swap_folder(shared: Path) -> None:
    folder = shared / f"{PREFIX}x"
    (folder / "zero_stage_3").mkdir(parents=True)
    (folder / LOCK).write_text("")
    give_to_other(folder)
    assert remove_stale_swap_dirs(shared) == []
    assert (folder / "zero_stage_3").is_dir()
    assert (folder / LOCK).read_text() == ""


@Attempt(
    "S53",
    "another user makes the newest run of a shared folder, for `--resume auto`",
    "the run resumes from his checkpoint, which can run code",
    "skipped with a sentence; the newest run of one's own is taken",
)
def test_planted_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_to_other(runs / "demo-2")
    found, told = resume("auto", runs)
    assert found.origin == runs / "demo-1"
    assert any("demo-2: it belongs to another user" in line for line in told)
    assert resume(str(runs / "demo-2"), runs)[0].origin == runs / "demo-2", "who names it chose it"
    monkeypatch.setenv("HARNESS_TRUSTED_ACCOUNTS", str(MALLORY))
    assert resume("auto", runs)[0].origin == runs / "demo-2"


@Attempt(
    "S54",
    "another user makes a newer run and holds its lock for ever, for `--resume auto`",
    "EN122: no run of this spec resumes",
    "skipped",
)
def test_planted_running_run(runs: Path) -> None:
    lock = Lock.acquire(runs / "demo-3" / "lock", "harness launch")
    give_to_other(runs / "demo-3")
    assert resume("auto", runs)[0].origin == runs / "demo-2"
    lock.release()


@pytest.mark.parametrize(
    "name",
    [
        attempt_param(
            Attempt("S55", "another user points `latest` of a shared folder to his run", "resumed from", "CK129"),
            "latest",
        ),
        attempt_param(
            Attempt("S56", "the name of another user's run begins with the requested name", "resumed", "CK129"),
            "demo",
        ),
    ],
)
def test_planted_names(name: str, runs: Path) -> None:
    (runs / "latest").unlink()
    (runs / "latest").symlink_to("demo-2")
    give_to_other(runs / "demo-2", runs / "latest")
    for run in ("demo-1", "demo-2"):
        (runs / run / "spec.yaml").write_text("")
    with pytest.raises(UserError) as refused:
        resume(name, runs)
    assert refused.value.findings[0].gate == "CK129"
    assert f"--resume {runs / 'demo-2'}" in str(refused.value.findings[0].fix)


@Attempt(
    "S57",
    "another user adds a newer checkpoint, or a file of one, to a run that a group may write",
    "resumed from",
    "skipped with a sentence",
)
def test_planted_checkpoint(runs: Path) -> None:
    give_to_other(save(runs / "demo-2", 40))
    give_to_other(save(runs / "demo-2", 30) / "rank-00000.pt")
    wanted = runs / "demo-2" / "checkpoints" / "step-00000020"
    for asked in ("auto", str(runs / "demo-2")):
        found, told = resume(asked, runs)
        assert found == ResumeSource(wanted, runs / "demo-2")
        assert sum("belongs to another user" in line for line in told) == 2
    with pytest.raises(UserError) as refused:
        resume(str(runs / "demo-2" / "checkpoints" / "step-00000030"), runs)
    assert refused.value.findings[0].gate == "CK129"


@Attempt(
    "S58",
    "another user, who may only read a lock file, holds it after its run was killed",
    "the run directory is in use for ever (EN120, EN122)",
    "he is no holder, and the next lock is a new file",
)
def test_held_by_a_reader(shared: Path) -> None:
    lock = shared / "lock"
    lock.write_text(json.dumps({"host": "gone", "pid": 1, "ticks": 0}))
    ours = Lock.acquire(lock)  # its holder is named as on this host
    text = lock.read_text()
    ours.release()
    lock.write_text(text.replace(f'"pid": {os.getpid()}', '"pid": 4194304'))
    lock.chmod(0o644)
    with other_holds(lock):
        assert current_holder(lock) is None
        taken = Lock.acquire(lock, "mine")
        with pytest.raises(LockHeld, match="mine"):
            Lock.acquire(lock)
        taken.release()


@Attempt(
    "S59",
    "another user holds the lock of a swap folder, of prepared data or of a calibration",
    "the next run waits for ever, or does not start",
    "he cannot open the file: mode 0600",
)
def test_private_lock(shared: Path) -> None:
    lock = shared / "lock"
    lock.write_text("")
    lock.chmod(0o644)
    taken = Lock.acquire(lock, private=True)
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    with pytest.raises(AssertionError, match="cannot open"), other_holds(lock):
        pass
    taken.release()


@Attempt(
    "S60",
    "another user's file in `/dev/shm` by the name of a buffer of one's own",
    "`doctor` advises to remove it, and a launch ends in a traceback: PermissionError",
    "left alone",
)
def test_planted_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, planted = (tmp_path / f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_29001_{rank}" for rank in (0, 1))
    for path in (own, planted):
        path.write_bytes(b"x" * 10)
    give_to_other(planted)
    assert [b.path for b in shm.find_buffers(tmp_path)] == [own]

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert shm.remove_unused_buffers({29001}, tmp_path) == 0
    assert shm.remove_unused_buffers({29001}, tmp_path) == 10
    assert planted.exists()


@Attempt(
    "S61",
    "another user removes `secrets.json` of a run directory that a group may write, before a restart",
    "the next one has the mode of the umask",
    "mode 0600",
)
def test_secrets_again(tmp_path: Path) -> None:
    plan = Mock()
    plan.run_dir = tmp_path
    plan.files = lambda: {SECRETS_FILE: "{}", "spec.yaml": ""}
    replace_files(plan)
    assert stat.S_IMODE((tmp_path / SECRETS_FILE).stat().st_mode) == 0o600
    write_atomically(tmp_path / SECRETS_FILE, "{}")
    assert stat.S_IMODE((tmp_path / SECRETS_FILE).stat().st_mode) == 0o600


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmJob:
    monkeypatch.setattr("subprocess.run", Mock(return_value=Mock(returncode=0, stdout="1")))
    job = build_job("demo", tmp_path, tmp_path, ["harness", "launch"], "never", (), "20271126-120000")
    job.file.parent.mkdir()
    return job


@Attempt(
    "S73",
    "another user plants a link by the name of a Slurm job's script in a shared runs folder",
    "the file that it leads to is overwritten, and made executable",
    "the link is replaced",
)
def test_planted_job(job: SlurmJob, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    job.file.symlink_to(victim)
    submit_job(job)
    assert victim.read_text() == "precious"
    assert not job.file.is_symlink()
    assert os.access(job.file, os.X_OK)


@Attempt(
    "S74",
    "another user makes the folder `slurm` of a shared runs folder",
    "he can change the script before sbatch reads it",
    "EN011",
)
def test_planted_job_folder(job: SlurmJob) -> None:
    give_to_other(job.file.parent)
    with pytest.raises(UserError) as refused:
        submit_job(job)
    assert refused.value.findings[0].gate == "EN011"
