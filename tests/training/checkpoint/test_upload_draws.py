# SPDX-License-Identifier: Apache-2.0
"""Faults of a store, drawn over the uploads of a run and over a resume from what they left: never "completed" without the
last checkpoint in the store or the reason why it is not there, and never other bits.

Two forked ranks and a real S3 server. HARNESS_NIGHTLY=1 draws twenty times in six minutes, else once.
"""

# ruff: noqa: S311  (seeded on purpose)

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.latest import find_latest
from harness.checkpoints.store_commands import download_to, upload_folder
from harness.checkpoints.store_source import find_stored_checkpoint
from harness.errors import UserError
from tests.support.object_store import Environ, Response, StoreServer, error, needs_store
from tests.support.training.forked_ranks import ForkedRanks

pytestmark = [pytest.mark.training, needs_store]
JOB = Path(__file__).parents[1] / "jobs" / "checkpoint_cases.py"
IS_NIGHTLY = bool(os.environ.get("HARNESS_NIGHTLY"))
SEED = 52
DRAWS = range(20) if IS_NIGHTLY else (3,)
"""The fourth cuts an upload and silences the store while the resumed run uploads."""
KINDS = ("silent", "500s", "denied", "cut", "other bytes", "slow")
STEPS = {"train": {"max_steps": 4, "gradient_accumulation_steps": 1}, "eval": {"eval_steps": None}}
LAST = 4


@dataclass
class Fault:
    """From the `number`-th request of a method on, so many requests fail in one way."""

    kind: str
    method: str
    number: int
    times: int
    count: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, environ: Environ) -> Response | None:
        with self.lock:
            self.count += environ["REQUEST_METHOD"] == self.method
            is_due = environ["REQUEST_METHOD"] == self.method and 0 <= self.count - self.number < self.times
        if not is_due:
            return None
        if self.kind == "silent":
            self.ended.wait()
        elif self.kind == "slow":
            self.ended.wait(0.7)
        elif self.kind == "cut":
            raise ConnectionResetError("the test cuts the connection")
        elif self.kind == "other bytes" and self.method == "GET":
            return Response(200, b"of another object")
        return {"500s": error(500, "InternalError"), "denied": error(403, "AccessDenied")}.get(self.kind)


def draw(drawn: random.Random, at: int) -> Fault:
    """One fault, of each kind as often: while it uploads or while it resumes; a few requests, or all from then on."""
    kind = KINDS[at % len(KINDS)]
    method = "GET" if kind == "other bytes" else drawn.choice(["PUT", "PUT", "GET"])
    return Fault(kind, method, drawn.randint(1, 20), drawn.choice([1, 3, 10**6]))


def run(
    forked: ForkedRanks, model: Path, folder: Path, s3: StoreServer, url: str, actions: list[Any], fault: Fault
) -> Any:
    """The result of the last action."""
    case = {
        "name": "run",
        "case": "zero2-cpu",
        "settings": {**STEPS, "checkpoint": {"save_steps": 2, "upload_to": url}},
    }
    case["actions"] = [["use_store", s3.environment()], ["make", "one"], *actions]
    folder.mkdir()
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"folder": str(folder), "model": str(model), "cases": [case]}))
    s3.faults.answer = fault.answer
    try:
        forked.run(JOB, str(plan))
    finally:
        fault.ended.set()
        s3.faults.answer = None
    return json.loads((folder / "run" / "results.json").read_text())[-1]


def check_end(run_dir: Path, url: str, result: Any) -> str:
    """What is true of a run that has trained to its end; returns what it says is not uploaded."""
    assert result["step"] == LAST
    newest = find_latest(run_dir / "checkpoints", verify="bytes").checkpoint
    assert newest is not None
    assert newest.name == "step-00000004"
    statuses = [json.loads(path.read_text()) for path in sorted((run_dir / "status").glob("rank-*.json"))]
    assert {status["outcome"] for status in statuses} == {"completed"}
    missing = {status.get("not_uploaded", "") for status in statuses}
    assert len(missing) == 1
    (why,) = missing
    if why:
        assert "the checkpoint of step 4 is not in" in why
        assert statuses[0]["upload_command"] == f"harness checkpoint upload {newest} {url}"
        upload_folder(newest, url)  # what the command does, now that the store is well again
    assert find_stored_checkpoint(url)[0].step == LAST
    copy = download_to(url, run_dir.parent / "copy")
    assert find_latest(copy.parent, verify="bytes").checkpoint == copy
    return why


@pytest.fixture(scope="module")
def whole(forked: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that no fault touches."""
    folder = tmp_path_factory.mktemp("whole")
    case = {"name": "run", "case": "zero2-cpu", "settings": {**STEPS, "checkpoint": {"save_steps": 2}}}
    case["actions"] = [["make", "one"], ["train", "one"]]
    (folder / "plan.json").write_text(json.dumps({"folder": str(folder), "model": str(tiny_model), "cases": [case]}))
    forked.run(JOB, str(folder / "plan.json"))
    return json.loads((folder / "run" / "results.json").read_text())[-1]


@pytest.mark.parametrize("at", DRAWS)
def test_no_fault_of_a_store_is_a_run_that_only_says_completed(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, s3: StoreServer, whole: Any, at: int
) -> None:
    drawn = random.Random(f"{SEED} {at}")
    fault, url = draw(drawn, at), f"s3://bucket/runs/{at}"
    print(fault)
    trained = run(forked, tiny_model, tmp_path / "a", s3, url, [["train", "one"]], fault)
    assert trained["digest"] == whole["digest"]
    print("upload:", check_end(tmp_path / "a" / "run" / "one", url, trained) or "complete")

    shutil.rmtree(tmp_path / "a")  # the disk is gone; and of the store the last manifest
    s3.client.delete_object(Bucket="bucket", Key=f"runs/{at}/step-00000004/manifest.json")
    has_first = f"runs/{at}/step-00000002/manifest.json" in s3.keys("bucket")
    if not has_first:
        with pytest.raises(UserError, match="no complete checkpoint"):
            find_stored_checkpoint(url)
        return
    fault = draw(drawn, at + 3)
    print(fault)
    resumed = run(forked, tiny_model, tmp_path / "b", s3, url, [["resume_stored", "one", url]], fault)
    if "refused" in resumed:  # the store did not give the checkpoint: nothing was trained, and nothing says otherwise
        assert resumed["refused"][0][0].startswith("ST")
        return
    assert resumed["digest"] == whole["digest"]
    print("resume:", check_end(tmp_path / "b" / "run" / "one", url, resumed) or "complete")
