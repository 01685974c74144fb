# SPDX-License-Identifier: Apache-2.0
"""`--resume` on checkpoints that are real to their manifests, with a file of a few bytes each. Milliseconds."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from harness.checkpoints import manifest
from harness.errors import UserError
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.setup.resume import ResumeSource, resolve_resume
from harness.launching.setup.run_dir import acquire_lock, write_run_dir
from harness.run.batch_sizes import BatchSizes
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.training_lineage import TrainingPart

SPEC = RunSpec.model_validate({"train": {"seed": 1}}).model_dump(mode="json")


@pytest.fixture
def runs(tmp_path):
    """Three runs of `demo`, the newest without a checkpoint, and one of another spec."""
    for number, name in enumerate(("demo-1", "demo-2", "demo-3", "demo-other-1")):
        run = name.rpartition("-")[0]
        hosts = (HostPlan("here", (0,), ()),)
        write_run_dir(LaunchPlan(run, tmp_path / name, tmp_path, ("true",), hosts, True, 29001, (), {}))
        os.utime(tmp_path / name / "launch.json", (number, number))
    for name, step in (("demo-1", 30), ("demo-2", 10), ("demo-2", 20), ("demo-other-1", 99)):
        save(tmp_path / name, step)
    return tmp_path


def save(run_dir, step, spec=SPEC):
    folder = run_dir / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    content = b"state" * step
    (folder / "rank-00000.pt").write_bytes(content)
    files = {
        "rank-00000.pt": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "rank": 0, "node": 0}
    }
    body = {"state": {"step": step}, "tag": f"global_step{step}", "world": 1, "zero_stage": 0, "dtype": "float32"}
    manifest.write_manifest(folder, {**body, "files": files, "spec": spec})
    return folder


def resume(asked, folder, name="demo", spec=SPEC, allowed=()):
    told: list[str] = []
    return resolve_resume(asked, folder, name, spec, allowed, told.append), told


def test_the_newest_complete_checkpoint_of_the_newest_run_that_has_one(runs):
    wanted = runs / "demo-2" / "checkpoints" / "step-00000020"
    assert resume("auto", runs)[0] == ResumeSource(wanted, runs / "demo-2")
    assert resume("never", runs)[0] == ResumeSource()
    assert resume("auto", runs, "unknown")[0] == ResumeSource()
    assert resume(str(wanted), runs)[0].checkpoint == wanted
    assert resume(str(runs / "demo-2"), runs)[0].checkpoint == wanted
    assert resume(str(runs / "demo-2" / "checkpoints"), runs)[0].checkpoint == wanted
    for wrong in (runs / "demo-3", runs / "nowhere"):
        with pytest.raises(UserError) as refused:
            resume(str(wrong), runs)
        assert refused.value.findings[0].gate == "CK001"


def test_a_damaged_one_is_passed_over_and_told(runs):
    damaged = runs / "demo-2" / "checkpoints" / "step-00000020"
    (damaged / "rank-00000.pt").write_bytes(b"State" * 20)
    (runs / "demo-2" / "checkpoints" / ".tmp-step-00000030").mkdir()
    found, told = resume("auto", runs)
    assert found.checkpoint.name == "step-00000010"
    assert any("step-00000020" in line and "rank-00000.pt" in line for line in told)
    assert any(".tmp-step-00000030" in line and "not finished" in line for line in told)


def test_all_of_a_run_damaged_leads_to_the_run_before(runs):
    for path in (runs / "demo-2" / "checkpoints").glob("step-*"):
        (path / "rank-00000.pt").unlink()
    found, told = resume("auto", runs)
    assert found == ResumeSource(runs / "demo-1" / "checkpoints" / "step-00000030", runs / "demo-1")
    assert sum("skipped" in line for line in told) >= 2


def test_a_damaged_one_that_was_named_is_refused_with_the_next_good_one(runs):
    damaged = runs / "demo-2" / "checkpoints" / "step-00000020"
    (damaged / "rank-00000.pt").write_bytes(b"short")
    with pytest.raises(UserError) as refused:
        resume(str(damaged), runs)
    assert refused.value.findings[0].gate.startswith("CK1")
    assert "step-00000010" in refused.value.findings[-1].fix.title


def test_a_changed_spec_is_refused_unless_it_is_meant(runs):
    other = RunSpec.model_validate({"train": {"seed": 2}, "logging": {"logging_steps": 5}}).model_dump(mode="json")
    with pytest.raises(UserError) as refused:
        resume("auto", runs, spec=other)
    finding = refused.value.findings[0]
    assert (finding.gate, finding.key) == ("CK107", "train.seed")
    assert "--allow-change train.seed" in finding.fix.title
    found, told = resume("auto", runs, spec=other, allowed=("train.seed",))
    assert found.checkpoint is not None
    assert any("`train.seed` 1 -> 2" in line for line in told)


def test_a_run_that_still_runs_is_not_gone_on_from(runs):
    lock = acquire_lock(runs / "demo-3")
    with pytest.raises(UserError) as refused:
        resume("auto", runs)
    assert refused.value.findings[0].gate == "EN122"
    lock.release()
    assert resume("auto", runs)[0].checkpoint is not None


def test_runs_that_resume_are_one_training_and_an_older_step_with_other_settings_is_a_branch(runs):
    other = RunSpec.model_validate({"train": {"seed": 2}}).model_dump(mode="json")
    old, last = (runs / "demo-2" / "checkpoints" / f"step-000000{step}" for step in (10, 20))

    def place(asked, spec=SPEC, allowed=("train.seed",)):
        return resume(str(asked), runs, spec=spec, allowed=allowed)[0].place_in_training(runs / "demo-9")

    assert resume("never", runs)[0].place_in_training(runs / "demo-9") == TrainingPart("demo-9")
    assert place(last) == place(old) == TrainingPart("demo-2", "demo-2")
    assert place(last, other) == TrainingPart("demo-2", "demo-2")  # the training goes on with other settings
    assert place(old, other) == TrainingPart("demo-9", "demo-2", "demo-2")
    launch = json.loads((runs / "demo-3" / "launch.json").read_text())
    launch |= {"training": "demo-2", "parent": "demo-2"}
    (runs / "demo-3" / "launch.json").write_text(json.dumps(launch))
    save(runs / "demo-3", 25)
    assert place(last, other) == TrainingPart("demo-9", "demo-2", "demo-2")  # a resume has a later step meanwhile
    assert place(runs / "demo-3") == TrainingPart("demo-2", "demo-3")


def batch_of(runs, world_size, *, allowed=(), keeps_batch=True, saved=None, **train):
    """The batch that a run resumes with, whose checkpoint was saved on one rank with `saved` as its `train`."""
    step = 40 + len(list((runs / "demo-2" / "checkpoints").iterdir()))
    save(runs / "demo-2", step, {**SPEC, "train": {**SPEC["train"], **(saved or {"per_device_train_batch_size": 2})}})
    run = resolve_run(RunSpec.model_validate({"train": {"seed": 1, **train}}), world_size=world_size)
    spec, told = run.spec.model_dump(mode="json"), []
    source = resolve_resume(
        str(runs / "demo-2"), runs, "demo", spec, allowed, told.append, None, run, keeps_batch=keeps_batch
    )
    return source.batch, [line for line in told if not line.startswith("skipped")]


def test_accumulation_keeps_the_batch_of_the_checkpoint(runs):
    eight = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    assert batch_of(runs, 1, per_device_train_batch_size=2) == (None, [])
    kept, told = batch_of(runs, 2, saved=eight, per_device_train_batch_size=2)
    assert kept == BatchSizes(2, 2, 8)
    assert told == [
        "keeping the checkpoint's global batch of 8: 2 per rank x 2 data-parallel ranks x 2 accumulation steps"
    ]
    # what it really had, written out
    assert batch_of(runs, 2, saved=eight, per_device_train_batch_size=2, global_batch_size=8) == (None, [])


@pytest.mark.parametrize(
    "train",
    [
        {"per_device_train_batch_size": 2},  # 4 a step at least
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
        {"global_batch_size": 4},
    ],
)
def test_a_batch_that_cannot_be_kept_is_refused_with_both(runs, train):
    with pytest.raises(UserError) as refused:
        batch_of(runs, 2, **train)
    (finding,) = refused.value.findings
    assert (finding.gate, finding.key) == ("CK107", "train.global_batch_size")
    assert "`train.global_batch_size` 2, this run has 4" in finding.message
    assert "`train.global_batch_size: 2`" in finding.fix.title
    assert "--allow-change train.global_batch_size" in finding.fix.title
    batch, told = batch_of(runs, 2, allowed=("train.global_batch_size",), **train)
    assert batch is None
    assert any("`train.global_batch_size` 2 -> 4" in line for line in told)


def test_hosts_that_look_at_no_checkpoint_keep_no_batch(runs):
    eight = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    with pytest.raises(UserError, match="this run has 4"):
        batch_of(runs, 2, saved=eight, keeps_batch=False, per_device_train_batch_size=2)
