# SPDX-License-Identifier: Apache-2.0
"""Runs on hosts of a box that share no disk: saves, resumes on the same and on other hosts, and a store. Four minutes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.boxes import NEEDS_ROOT, TheBox, box_command, made_box
from tests.support.host_launches import Launch, write_text
from tests.support.object_store import KEY_ID, SECRET, StoreServer, needs_store, run_store_server

pytestmark = [pytest.mark.hosts, *NEEDS_ROOT]
OWN = ", shared_disk: false"


class OwnLaunch(Launch):
    """A launch whose run directory is on the disk of its host alone."""

    @property
    def run_dir(self) -> Path:
        found = self.box.on(self.on, "sh", "-c", f"ls -d {self.output}/{self.name}-2*", check=False).stdout.split()
        return Path(max(found, default=str(self.output)))

    def read(self, name: str, host: int | None = None) -> str:
        return self.box.on(host or self.on, "cat", str(self.run_dir / name), check=False).stdout

    def rows(self, kind: str = "") -> list[dict[str, object]]:
        found = [json.loads(line) for line in self.read("metrics.jsonl").splitlines() if line.endswith("}")]
        return [row for row in found if kind in ("", row["type"])]

    def until(self, kind: str, count: int, seconds: float = 240) -> None:
        end = time.monotonic() + seconds
        while len(self.rows(kind)) < count:
            assert time.monotonic() < end, self.text.read_text()[-3000:]
            assert self.process.poll() is None, self.text.read_text()[-3000:]
            time.sleep(0.3)

    def files(self, host: int, step: int) -> set[str]:
        folder = self.run_dir / "checkpoints" / f"step-{step:08d}"
        return set(self.box.on(host, "sh", "-c", f"cd {folder} && find . -type f", check=False).stdout.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_text(tmp_path_factory.mktemp("own"))
    (made / "runs").mkdir()
    return made


@pytest.fixture(scope="module")
def box(folder: Path) -> Iterator[TheBox]:
    with made_box(4, "o", folder / "runs") as made:
        yield made


@pytest.fixture(scope="module")
def trained(box: TheBox, folder: Path) -> OwnLaunch:
    run = OwnLaunch(box, folder, "trained", (1, 2), steps=8, save=4, launch=OWN)
    assert run.end() == 0, run.text.read_text()[-4000:]
    return run


def test_each_host_keeps_its_shards_and_the_launching_host_knows_all_ranks(trained: OwnLaunch) -> None:
    first, second = trained.files(1, 8), trained.files(2, 8)
    assert "./rank-00000.pt" in first - second
    assert "./rank-00001.pt" in second - first
    assert {"./manifest.json"} <= first & second
    assert json.loads(trained.read("status/rank-00001.json"))["state"] == "completed"
    assert json.loads(trained.read("verdict.json"))["state"] == "completed"


def test_a_resume_on_the_same_hosts_moves_what_is_missing(box: TheBox, folder: Path, trained: OwnLaunch) -> None:
    checkpoint = trained.run_dir / "checkpoints" / "step-00000004"
    box.on(2, "sh", "-c", f"rm -r {trained.run_dir}/checkpoints/step-00000008")
    again = OwnLaunch(box, folder, "again", (1, 2), "--resume", str(checkpoint), steps=8, save=4, launch=OWN)
    assert again.end() == 0, again.text.read_text()[-4000:]
    losses = {row["step"]: row["loss"] for row in trained.rows("step")}
    resumed = {row["step"]: row["loss"] for row in again.rows("step")}
    assert resumed == {step: losses[step] for step in (5, 6, 7, 8)}
    assert trained.files(1, 4) == trained.files(2, 4)  # both have all of it now


def test_files_that_no_host_has_are_named(box: TheBox, folder: Path, trained: OwnLaunch) -> None:
    checkpoint = trained.run_dir / "checkpoints" / "step-00000008"
    run = OwnLaunch(box, folder, "other", (1, 3), "--resume", str(checkpoint), steps=12, save=4, launch=OWN)
    assert run.end() != 0
    assert "CK132" in run.text.read_text() + run.read("logs/launcher.log")


@needs_store
def test_a_host_is_killed_and_other_hosts_resume_from_the_store_and_export(box: TheBox, folder: Path) -> None:
    bridge = box.address(1).rpartition(".")[0] + ".254"
    credentials = folder / "credentials"
    credentials.write_text(f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")
    with run_store_server(bridge) as s3:
        run = _run_killed(box, folder, s3, credentials)
        env = _env(s3, credentials)
        owner = s3.client.get_object(Bucket="bucket", Key="runs/a/run.json")["Body"].read()
        saved = max(json.loads(owner)["steps"])
        options = ("--resume", "s3://bucket/runs/a")
        more = "export: {at_end: true, upload_to: 's3://bucket/models/a'}"
        save = "5, upload_to: 's3://bucket/runs/a'"
        left = OwnLaunch(
            box, folder, "left", (3, 4), *options, on=3, steps=saved + 12, save=save, launch=OWN, env=env, more=more
        )
        assert left.end() == 0, left.text.read_text()[-4000:]
        losses = {row["step"]: row["loss"] for row in run.rows("step")}
        resumed = {row["step"]: row["loss"] for row in left.rows("step")}
        assert sorted(resumed) == list(range(saved + 1, saved + 13))
        common = losses.keys() & resumed.keys()
        assert {step: losses[step] for step in common} == {step: resumed[step] for step in common}
        assert left.rows("upload")[-1]["step"] == saved + 10
        assert "model.safetensors" in box.on(3, "ls", str(left.run_dir / "export")).stdout
        assert "models/a/harness-export.json" in s3.keys("bucket")
        for text in (run.text, left.text):
            assert SECRET not in text.read_text()
        assert box.on(3, "grep", "-rl", SECRET, str(left.run_dir), check=False).stdout == ""


@needs_store
def test_a_run_that_loses_a_host_restarts_without_it_by_the_store(box: TheBox, folder: Path) -> None:
    """The shards of the lost host come from the store, and the checkpoint is resharded for one rank."""
    credentials = folder / "credentials"
    credentials.write_text(f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")
    with run_store_server(box.address(1).rpartition(".")[0] + ".254") as s3:
        save, env = "5, upload_to: 's3://bucket/runs/b'", _env(s3, credentials)
        launch = OWN + ", max_restarts: 2, restart_delay_seconds: 0.5, min_hosts: 1"
        run = OwnLaunch(box, folder, "lost", (1, 2), steps=100_000, save=save, launch=launch, env=env)
        run.until("upload", 1)
        assert box_command(box.name, "cut", "2").returncode == 0
        try:
            run.until("restart", 1)
            (restart,) = run.rows("restart")
            run.until("run", 2)
            run.until("step", len(run.rows("step")) + 3)
            box.on(1, "touch", str(run.run_dir / "stop"))
            assert run.end(120) == 130, run.text.read_text()[-4000:]  # asked to stop
        finally:
            box_command(box.name, "heal", "2")
    assert restart["step"]
    resumed = [row for row in run.rows("run") if row["start_step"] == restart["step"]]
    assert [row["world"] for row in resumed] == [1]


def _run_killed(box: TheBox, folder: Path, s3: StoreServer, credentials: Path) -> OwnLaunch:
    """A run on hosts 1 and 2 until a checkpoint is in the store; then host 2 is cut off."""
    save, env = "5, upload_to: 's3://bucket/runs/a'", _env(s3, credentials)
    run = OwnLaunch(box, folder, "killed", (1, 2), steps=100_000, save=save, launch=OWN, env=env)
    run.until("upload", 1)
    assert box_command(box.name, "cut", "2").returncode == 0
    try:
        assert run.end(120) == 1
    finally:
        box_command(box.name, "heal", "2")
    return run


def _env(s3: StoreServer, credentials: Path) -> str:
    variables = {name: value for name, value in s3.environment().items() if "KEY" not in name}
    variables["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials)
    return "".join(f', {name}: "{value}"' for name, value in variables.items())
