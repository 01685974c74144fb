# SPDX-License-Identifier: Apache-2.0
"""Kills drawn over the uploads of a run and over its resume from a store: of a rank, all ranks, the supervisor, or all
of them. Never "completed" without the checkpoint and the export of the last step, on the disk and in the store; and the
same command again ends right, with the weights of a run that nobody touched.

`harness launch` and a real S3 server; the ranks are forked. HARNESS_NIGHTLY=1 draws twenty kills, else two.
"""

# ruff: noqa: S311  (seeded on purpose)

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.latest import find_latest
from harness.checkpoints.store_source import find_stored_checkpoint
from harness.errors import ExitCode
from harness.verdicts import read_verdict
from tests.kill.attempt import rank_pids
from tests.support.object_store import Environ, Response, StoreServer, needs_store
from tests.support.training.faulty_launches import KilledLaunches
from tests.support.training.forked_ranks import ForkedRanks

pytestmark = [pytest.mark.training, needs_store]
SEED = 52
IS_NIGHTLY = bool(os.environ.get("HARNESS_NIGHTLY"))
WHO = ("supervisor", "rank", "everything", "ranks")
FIRST, LAST = 2, 4
REQUESTS = {"PUT": 32, "GET": 10}
"""Of an untouched run, two checkpoints of twelve files and an export of eight; of a resume, a checkpoint."""


@dataclass(frozen=True)
class Kill:
    """`who` gets SIGKILL at the `number`-th request of a method for a file of a checkpoint or of the export."""

    who: str
    method: str
    number: int
    on_save_error: str

    @classmethod
    def draw(cls, at: int) -> Kill:
        """Each of `who` as often, while files go up and while they come down."""
        drawn = random.Random(f"{SEED} {at}")
        method = "GET" if at % 2 else "PUT"
        on_save_error = drawn.choice(["stop", "continue"])
        return cls(WHO[at // 2 % len(WHO)], method, drawn.randint(1, REQUESTS[method]), on_save_error)


class Runs:
    """The runs of one spec and store prefix."""

    def __init__(self, launches: KilledLaunches, s3: StoreServer, name: str, model: Path, on_save_error: str) -> None:
        self.launches, self.s3, self.name = launches, s3, name
        self.url, self.export_url = f"s3://bucket/{name}/run", f"s3://bucket/{name}/export"
        self.output = launches.folder / name
        self.output.mkdir()
        self.spec = self.output / "spec.yaml"
        self.spec.write_text(
            json.dumps(
                {
                    "name": "drawn",
                    "model": {"name_or_path": str(model)},
                    "data": {"train": "builtin:python-docs", "max_length": 32, "eval_fraction": 0.0},
                    "train": {"max_steps": LAST, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
                    "optimizer": {"learning_rate": 3e-3},
                    "zero": {"stage": 2},
                    "checkpoint": {"save_steps": FIRST, "upload_to": self.url, "on_save_error": on_save_error},
                    "export": {"at_end": True, "upload_to": self.export_url},
                    "launch": {"num_gpus": 2, "output_dir": str(self.output / "runs")},
                    "cluster": {"gpu": "cpu"},
                }
            )
        )

    def launch(self, *arguments: str) -> tuple[int, str]:
        return self.launches.run(str(self.spec), *arguments)

    @property
    def newest(self) -> Path:
        return max((self.output / "runs").glob("drawn-*"), key=lambda path: path.name)

    def rank_pids(self) -> list[int]:
        return rank_pids(self.newest) if (self.output / "runs").exists() else []

    def launch_killed(self, kill: Kill, *arguments: str) -> None:
        """Launch, kill, and wait until nobody is left; of a run that then says "completed", everything is there."""
        strike = Strike(self, kill)
        self.s3.faults.answer = strike.answer
        try:
            code, screen = self.launch(*arguments)
        finally:
            self.s3.faults.answer = None
        assert strike.has_acted.is_set(), screen
        end = time.monotonic() + 30
        while self.rank_pids() and time.monotonic() < end:
            time.sleep(0.05)
        assert self.rank_pids() == []
        has_verdict = (self.output / "runs").exists() and (self.newest / "verdict.json").exists()
        verdict = read_verdict(self.newest) if has_verdict else None  # nobody was left to write it
        print(code, verdict)
        if code == 0 or (verdict is not None and verdict.code == 0):
            self.check_complete()
            return
        assert "\ncompleted: " not in screen
        if verdict is not None and verdict.code == ExitCode.NOT_UPLOADED:
            assert verdict.reason.startswith("trained and saved, not uploaded: ")
            newest = find_latest(self.newest / "checkpoints", verify="bytes").checkpoint
            assert newest is not None
            assert newest.name == f"step-{LAST:08d}"
            assert (self.newest / "export" / "model.safetensors").exists()
        else:
            assert verdict is None or verdict.state == "failed"

    def check_complete(self) -> str:
        """The checkpoint and the export of the last step, on the disk and in the store; returns the export's digest."""
        run_dir = self.newest
        newest = find_latest(run_dir / "checkpoints", verify="bytes").checkpoint
        assert newest is not None
        assert newest.name == f"step-{LAST:08d}"
        assert find_stored_checkpoint(self.url)[0].step == LAST
        exported = (run_dir / "export" / "model.safetensors").read_bytes()
        body = self.s3.client.get_object(Bucket="bucket", Key=f"{self.name}/export/model.safetensors")["Body"]
        assert body.read() == exported
        return hashlib.sha256(exported).hexdigest()


class Strike:
    """Kills at a request; later ones are answered as ever."""

    def __init__(self, runs: Runs, kill: Kill) -> None:
        self.runs, self.kill, self.count = runs, kill, 0
        self.has_acted, self.lock = threading.Event(), threading.Lock()

    def answer(self, environ: Environ) -> Response | None:
        path = environ["PATH_INFO"]
        is_file = f"/{self.runs.name}/run/step-" in path or (
            f"/{self.runs.name}/export/" in path and "probe" not in path
        )
        if is_file and environ["REQUEST_METHOD"] == self.kill.method:
            with self.lock:
                self.count += 1
                if self.count >= self.kill.number and not self.has_acted.is_set():
                    self.has_acted.set()
                    pids = self.runs.rank_pids()  # none before they start and while the export goes up
                    self.runs.launches.kill(self.kill.who if pids else "supervisor", pids)
        return None


@pytest.fixture(scope="module")
def launches(forked: ForkedRanks, s3_server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    killed = KilledLaunches(forked, tmp_path_factory.mktemp("launches"))
    with killed.serve(s3_server.environment()):
        yield killed


@dataclass(frozen=True)
class Whole:
    """The run that nobody touched: the digest of its export, and its stored objects."""

    digest: str
    objects: dict[str, bytes]


@pytest.fixture(scope="module")
def whole(launches: KilledLaunches, s3_server: StoreServer, tiny_model: Path) -> Whole:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment().items():
            patch.setenv(name, value)
        runs = Runs(launches, s3_server, "whole", tiny_model, "stop")
        code, screen = runs.launch()
        assert code == 0, screen
        get = s3_server.client.get_object
        keys = s3_server.keys("bucket", "whole/run/")
        return Whole(runs.check_complete(), {key: get(Bucket="bucket", Key=key)["Body"].read() for key in keys})


@pytest.mark.parametrize("at", range(20) if IS_NIGHTLY else (0, 5))
def test_no_kill_is_a_run_that_only_says_completed(
    launches: KilledLaunches, whole: Whole, s3: StoreServer, tiny_model: Path, at: int
) -> None:
    kill = Kill.draw(at)
    print(kill)
    runs = Runs(launches, s3, f"drawn-{at}", tiny_model, kill.on_save_error)
    resume = "auto"
    if kill.method == "GET":  # of a run that is gone, the store has the first checkpoint
        resume = runs.url
        for key, body in whole.objects.items():
            if f"step-{LAST:08d}" not in key:
                s3.client.put_object(Bucket="bucket", Key=key.replace("whole/", f"{runs.name}/"), Body=body)
    runs.launch_killed(kill, "--resume", resume)
    code, screen = runs.launch("--resume", resume)  # the same command again
    print(screen[-600:])
    assert code == 0, screen
    assert runs.check_complete() == whole.digest
