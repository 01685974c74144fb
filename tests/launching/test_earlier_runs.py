# SPDX-License-Identifier: Apache-2.0
"""The run of several that `--resume auto` continues: one of the same spec, along its lineage. Milliseconds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.lineage import find_lineage
from harness.errors import UserError
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.setup.resume import ResumeSource, find_complete_run, resolve_resume
from harness.launching.setup.run_dir import acquire_lock, write_run_dir
from harness.run.batch_sizes import BatchSizes
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec
from harness.verdicts import Verdict, write_verdict
from tests.support.sample_checkpoints import SPEC, make


def spec(**train: Any) -> dict[str, Any]:
    """The sample's spec with other values of `train`, and with `lr` as its learning rate."""
    lr = train.pop("lr", SPEC["optimizer"]["learning_rate"])
    return SPEC | {
        "train": SPEC["train"] | {"max_steps": 90} | train,
        "optimizer": SPEC["optimizer"] | {"learning_rate": lr},
    }


def a_run(batch: int) -> ResolvedRun:
    """A run on one rank with this global batch."""
    return resolve_run(RunSpec.model_validate({"train": {"global_batch_size": batch}}), world_size=1)


class Runs:
    """Run directories of one name, each newer than the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, list[str]()

    def add(
        self,
        name: str,
        *steps: int,
        resume: Path | None = None,
        ended: int | None = None,
        seconds: float = 1.0,
        **train: Any,
    ) -> Path:
        """A run of a spec that saved these steps; `ended` is its exit code, if it has one."""
        run_dir = self.folder / f"demo-{name}"
        files = {"spec.resolved.json": json.dumps({"spec": spec(**train)})}
        hosts = (HostPlan("here", (0,), ()),)
        write_run_dir(LaunchPlan("demo", run_dir, self.folder, ("true",), hosts, True, 29001, (), files, resume=resume))
        number = len(list(self.folder.glob("demo-*")))
        os.utime(run_dir / "launch.json", (number, number))
        for step in steps:
            make(run_dir / "checkpoints", step, spec=spec(**train), run_id=run_dir.name)
        if ended is not None:
            state = "completed" if ended == 0 else "failed"
            write_verdict(run_dir, Verdict(state, ended, step=max(steps), seconds=seconds))
        return run_dir

    def resume(self, *allowed: str, asked: str = "auto", batch: int | None = None, **train: Any) -> ResumeSource:
        """What a launch of this spec resumes."""
        wanted, self.told = spec(**train), []
        run = a_run(batch) if batch is not None else None
        return resolve_resume(asked, self.folder, "demo", wanted, allowed, self.told.append, run=run)

    def chosen(self, *allowed: str, **train: Any) -> str:
        """The run and step that a launch of this spec resumes, without `demo-`."""
        checkpoint = self.resume(*allowed, **train).checkpoint
        if checkpoint is None:
            return "none"
        return f"{checkpoint.parent.parent.name.removeprefix('demo-')} {int(checkpoint.name.rpartition('-')[2])}"

    def refused(self, *allowed: str, **train: Any) -> tuple[str, ...]:
        """The notes of the refusal, each cut to the run and what it has otherwise."""
        with pytest.raises(UserError) as refusal:
            self.resume(*allowed, **train)
        (finding,) = refusal.value.findings
        assert finding.gate == "CK134"
        assert "--resume " in (finding.fix.title if finding.fix else "")
        return tuple(note.replace(f"{self.folder}/demo-", "") for note in finding.notes)


def step(run_dir: Path, number: int) -> Path:
    return run_dir / "checkpoints" / f"step-{number:08d}"


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_side_experiment_is_passed_over(runs: Runs) -> None:
    main = runs.add("main", 40, 60, ended=1)
    runs.add("side", 44, max_steps=44, resume=step(main, 40))
    assert runs.chosen() == "main 60"
    (line,) = runs.told
    assert "demo-side`, step 44, of another spec: `train.max_steps` (44)" in line
    assert runs.chosen(max_steps=44) == "side 44"


def test_a_complete_run_is_an_answer(runs: Runs) -> None:
    main = runs.add("main", 40, 60, ended=0)
    runs.add("side", 44, lr=1.0, resume=step(main, 40))
    source = runs.resume()
    assert source.complete is not None
    assert (source.checkpoint, source.origin, source.complete.step) == (None, main, 60)
    assert runs.resume(asked=str(main)).complete, "a run that is named, too"
    assert runs.resume("train", asked=str(step(main, 60)), max_steps=60).checkpoint, "a named checkpoint is resumed"
    for asked in ("auto", str(main)):  # as the other hosts of `--no-ssh` ask
        assert find_complete_run(asked, runs.folder, "demo", spec(), (), None) == source
    assert find_complete_run(str(main), runs.folder, "demo", spec(seed=2), (), None).complete is None
    assert runs.chosen("train.max_steps", max_steps=120) == "main 60", "of another spec it is not complete"
    with pytest.raises(UserError, match="no step is left") as refusal:
        runs.resume("train.max_steps", max_steps=5)
    assert refusal.value.findings[0].gate == "CK135"


@pytest.mark.parametrize("end", [{"ended": 1}, {"ended": 0, "seconds": 0.0}, {}], ids=["failed", "export", "killed"])
def test_what_has_not_ended_well_is_resumed(runs: Runs, end: dict[str, Any]) -> None:
    runs.add("main", 40, 60, max_steps=60, **end)
    assert runs.chosen(max_steps=60) == "main 60"


def test_a_rollback_that_saved_nothing_yet_starts_where_it_did(runs: Runs) -> None:
    main = runs.add("main", 20, 40, 60)
    runs.add("back", resume=step(main, 20))
    assert runs.chosen() == "main 20"
    (step(main, 20) / "rank-00000.pt").unlink()
    (note,) = runs.refused()
    assert note.startswith("it resumed `main` from step 20, which has step 60 now")
    runs.add("again", resume=step(main, 60))
    assert runs.chosen() == "main 60"


def test_other_specs_are_taken_where_one_is_meant_and_listed_where_not(runs: Runs) -> None:
    first = runs.add("first", 20, lr=2.0)
    runs.add("second", 10, lr=2.0)
    assert runs.chosen("optimizer.learning_rate") == "second 10", "the newest of one spec"
    runs.add("third", 30, lr=3.0, resume=step(first, 10))
    assert runs.refused("optimizer.learning_rate") == (
        "`third`, step 30, of another spec: `optimizer.learning_rate` (3.0)",
        "`second`, step 10, of another spec: `optimizer.learning_rate` (2.0)",
        "`first`, step 20, of another spec: `optimizer.learning_rate` (2.0)",
    )
    assert runs.chosen("optimizer.learning_rate", lr=2.0) == "second 10"


def test_a_chain_of_changed_specs_has_one_end(runs: Runs) -> None:
    first = runs.add("first", 20, lr=2.0)
    second = runs.add("second", 30, lr=3.0, resume=step(first, 20))
    assert runs.chosen("optimizer.learning_rate") == "second 30"
    runs.add("third", 40, lr=3.0, resume=step(second, 30))
    assert runs.chosen("optimizer.learning_rate") == "third 40"
    assert runs.refused(lr=2.0) == (
        "`first`, step 20, of this spec",
        "`second`, step 30, of another spec: `optimizer.learning_rate` (3.0)",
    ), "the spec without the change, which the run continued with"


def test_a_run_that_lost_hosts_is_of_the_same_spec(runs: Runs) -> None:
    """Its batch is then written as the global one."""
    runs.add("old", 50, seed=3)
    runs.add("main", 40, global_batch_size=8, gradient_accumulation_steps=None)
    runs.add("side", 44, lr=1.0)
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    with pytest.raises(UserError, match="differ"):
        runs.resume(batch=4, **batch)
    source = resolve_resume("auto", runs.folder, "demo", spec(**batch), ("train",), print, run=a_run(8))
    assert source.origin == runs.folder / "demo-main"


def test_a_run_that_lost_hosts_is_of_the_same_spec_on_fewer_ranks(runs: Runs) -> None:
    """The spec has a micro-batch alone: on 3 ranks it comes to 6 sequences, and keeps the 12 of 6 ranks."""
    runs.add("main", 40, global_batch_size=12, gradient_accumulation_steps=None)
    runs.add("side", 44, lr=1.0)
    sections = RunSpec.model_validate({"train": {"per_device_train_batch_size": 2}})
    source = resolve_resume(
        "auto", runs.folder, "demo", spec(), (), runs.told.append, run=resolve_run(sections, world_size=3)
    )
    assert (source.origin, source.batch) == (runs.folder / "demo-main", BatchSizes(2, 2, 12))


def test_a_run_continues_all_that_its_checkpoint_came_from(runs: Runs) -> None:
    """A prefix of a store is its own, also where the run between them never reached the store."""
    first = runs.add("first", 20, 40)
    second = runs.add("second", 50, resume=step(first, 20))
    runs.add("third", resume=step(second, 50))
    assert runs.resume().runs == ("demo-second", "demo-first")
    assert find_lineage(step(second, 50)).steps == (("demo-second", 50), ("demo-first", 20))


def test_another_batch_by_the_same_keys_is_another_spec(runs: Runs) -> None:
    """Two sequences, two ranks, two steps, as the sample was saved; on one rank with the steps fixed half of it."""
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    runs.add("main", 40, **batch)
    run = resolve_run(RunSpec.model_validate({"train": batch}), world_size=1)
    with pytest.raises(UserError) as refusal:
        resolve_resume("auto", runs.folder, "demo", spec(**batch), (), runs.told.append, run=run)
    assert refusal.value.findings[0].gate == "CK107"
    runs.add("half", 30, **batch, global_batch_size=4)
    source = resolve_resume("auto", runs.folder, "demo", spec(**batch), (), runs.told.append, run=run)
    assert source.origin == runs.folder / "demo-half"
    assert "demo-main" not in str(source)


def test_a_run_in_use_is_only_in_the_way_of_its_own_spec(runs: Runs) -> None:
    runs.add("main", 40)
    side = runs.add("side", lr=1.0)
    lock = acquire_lock(side)
    assert runs.chosen() == "main 40"
    assert runs.chosen("optimizer.learning_rate", lr=2.0) == "main 40"
    lock.release()
    lock = acquire_lock(runs.add("new"))
    with pytest.raises(UserError) as refusal:
        runs.resume()
    assert refusal.value.findings[0].gate == "EN122"
    lock.release()


def test_a_run_that_came_from_a_store_is_not_forgotten(runs: Runs) -> None:
    """Its first checkpoint, as downloaded, is in its own folder."""
    runs.add("main", 60)
    branch = runs.folder / "demo-branch"
    runs.add("branch", 20, resume=step(branch, 20))
    assert runs.chosen() == "branch 20"
