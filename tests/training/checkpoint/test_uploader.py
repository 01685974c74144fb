# SPDX-License-Identifier: Apache-2.0
"""Two ranks that upload to a real S3 server: resumes from the store alone, and a store that fails."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.store_source import find_stored_checkpoint
from tests.support.object_store import KEY_ID, SECRET, Environ, StoreServer, error, needs_store
from tests.support.training.forked_ranks import ForkedRanks

pytestmark = [pytest.mark.training, needs_store]
JOB = Path(__file__).parents[1] / "jobs" / "checkpoint_cases.py"
URL = "s3://bucket/runs/a"
STEPS = {"train": {"max_steps": 4, "gradient_accumulation_steps": 1}, "eval": {"eval_steps": None}}
STEPS |= {"scheduler": {"type": "constant"}}


def run(
    forked: ForkedRanks,
    model: Path,
    folder: Path,
    s3: StoreServer,
    name: str,
    actions: list[Any],
    steps: int = 4,
    **checkpoint: Any,
) -> list[Any]:
    train = {**STEPS["train"], "max_steps": steps}
    settings = {**STEPS, "train": train, "checkpoint": {"save_steps": 2, **checkpoint}}
    case = {"name": name, "case": "zero2-cpu", "settings": settings}
    case["actions"] = [["use_store", s3.environment()], *actions]
    plan = folder / f"{name}.json"
    plan.write_text(json.dumps({"folder": str(folder), "model": str(model), "cases": [case]}))
    forked.run(JOB, str(plan))
    return list(json.loads((folder / name / "results.json").read_text()))[1:]


def rows(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] in kinds]


@pytest.mark.parametrize("in_background", [False, True], ids=["in-line", "async"])
def test_a_run_resumes_from_the_store_alone_with_the_same_bits(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, s3: StoreServer, in_background: bool
) -> None:
    upload = {"upload_to": URL, "async_save": in_background}
    (_, whole) = run(forked, tiny_model, tmp_path, s3, "a", [["make", "one"], ["train", "one"]], **upload)
    uploaded = [line["step"] for line in rows(tmp_path / "a" / "one", "upload")]
    assert uploaded[-1] == 4
    assert rows(tmp_path / "a" / "one", "upload")[-1]["url"] == f"{URL}/step-00000004"
    shutil.rmtree(tmp_path / "a")  # the disk is gone
    if 2 in uploaded:  # and the last checkpoint was not complete
        s3.client.delete_object(Bucket="bucket", Key="runs/a/step-00000004/manifest.json")
    (_, resumed) = run(
        forked, tiny_model, tmp_path, s3, "b", [["make", "two"], ["resume_stored", "two", URL]], **upload
    )
    assert resumed["from"] == (2 if 2 in uploaded else 4)
    assert resumed["digest"] == whole["digest"]
    assert resumed["losses"].items() <= whole["losses"].items()
    assert find_stored_checkpoint(URL)[0].step == 4
    written = [p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file()]
    assert not any(secret.encode() in content for content in written for secret in (SECRET, KEY_ID))


def test_after_a_rollback_the_prefix_is_that_of_the_run_that_went_back(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, s3: StoreServer
) -> None:
    """The abandoned run has a newer checkpoint."""
    run(forked, tiny_model, tmp_path, s3, "a", [["make", "one"], ["train", "one"]], steps=6, upload_to=URL)
    actions = [["make", "two"], ["resume_stored", "two", f"{URL}/step-00000002"]]
    (_, back) = run(forked, tiny_model, tmp_path, s3, "b", actions, upload_to=URL)
    assert back["from"] == 2
    source, _, (skipped,) = find_stored_checkpoint(URL)
    assert (source.step, source.run_id.rpartition("-")[0]) == (4, "two")
    assert "step-00000006: it is of the run `one-" in skipped


def test_a_store_that_fails_costs_warnings_and_no_training(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, s3: StoreServer, capfd: pytest.CaptureFixture[str]
) -> None:
    s3.faults.fail(10**6, error(500, "InternalError"), "PUT")
    actions = [["make", "one"], ["train", "one"]]
    (_, trained) = run(forked, tiny_model, tmp_path, s3, "a", actions, upload_to=URL, save_total_limit=1)
    assert trained["step"] == 4
    assert not rows(tmp_path / "a" / "one", "upload")
    failed = [line for line in rows(tmp_path / "a" / "one", "upload_failed") if not line["skipped"]]
    assert [line["step"] for line in failed][-2:] == [4, 4]  # the newest is tried once more at the end
    assert "the store reports an internal error (InternalError)" in failed[-1]["error"]
    assert [p.name for p in sorted((tmp_path / "a" / "one" / "checkpoints").glob("step-*"))] == ["step-00000004"]
    assert not s3.keys("bucket")
    status = json.loads((tmp_path / "a" / "one" / "status" / "rank-00000.json").read_text())
    assert status["outcome"] == "completed"
    assert "the store reports an internal error" in status["not_uploaded"]
    assert status["upload_command"].endswith(f"a/one/checkpoints/step-00000004 {URL}")


def test_a_store_that_accepts_and_never_answers_does_not_hold_the_run(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, s3: StoreServer
) -> None:
    answers = threading.Event()

    def fall_silent(environ: Environ) -> None:
        if environ["REQUEST_METHOD"] == "PUT" and "step-00000004" in environ["PATH_INFO"]:
            answers.wait()

    s3.faults.answer = fall_silent
    try:
        actions = [["make", "one"], ["train", "one"]]
        (_, trained) = run(forked, tiny_model, tmp_path, s3, "a", actions, upload_to=URL, save_steps=None)
    finally:
        answers.set()
    assert trained["step"] == 4
    for rank in (0, 1):
        status = json.loads((tmp_path / "a" / "one" / "status" / f"rank-{rank:05d}.json").read_text())
        assert (status["outcome"], status["phase"]) == ("completed", "step")
        assert "the store accepts a request and has not answered for" in status["not_uploaded"]


def test_retention_counts_in_the_store_and_a_neighbour_stays(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, s3: StoreServer
) -> None:
    s3.client.put_object(Bucket="bucket", Key="runs/ab/step-00000002/manifest.json", Body=b"{}")
    s3.faults.seconds = 0.02
    actions = [["make", "one"], ["train", "one"], ["make", "two"], ["train", "two"]]
    keep = {"save_total_limit": 1, "save_steps": 1, "on_save_error": "continue"}
    (*_, second) = run(forked, tiny_model, tmp_path, s3, "a", actions, upload_to=URL, **keep)
    steps = {key.split("/")[2] for key in s3.keys("bucket", "runs/a/") if "/step-" in key}
    assert steps == {"step-00000004"}
    assert s3.keys("bucket", "runs/ab/") == ["runs/ab/step-00000002/manifest.json"]
    # The second run has no right to the prefix of the first: with `continue` it trains all the same, and says so.
    assert second["step"] == 4
    assert [line["step"] for line in rows(tmp_path / "a" / "one", "upload")][-1] == 4
    assert not rows(tmp_path / "a" / "two", "upload")
    assert "writes there" in rows(tmp_path / "a" / "two", "upload_failed")[-1]["error"]


def test_a_run_without_a_right_to_its_prefix_ends_after_a_save(
    forked: ForkedRanks, tiny_model: Path, tmp_path: Path, s3: StoreServer
) -> None:
    s3.client.put_object(Bucket="bucket", Key="runs/a/of-somebody-else", Body=b"1")
    many_steps = {"train": {"max_steps": 200, "gradient_accumulation_steps": 1}}
    actions = [["make", "one", many_steps], ["train", "one"]]
    (_, trained) = run(forked, tiny_model, tmp_path, s3, "a", actions, upload_to=URL, save_total_limit=1)
    assert [gate for gate, _ in trained["refused"]] == ["ST106"]
    saved, steps = ([line["step"] for line in rows(tmp_path / "a" / "one", kind)] for kind in ("save", "step"))
    assert steps[-1] == saved[-1] < 100  # the step in which it was known is saved
