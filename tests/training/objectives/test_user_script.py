# SPDX-License-Identifier: Apache-2.0
"""Scripts of docs/own-models.md on ranks, and scripts that are wrong. `harness launch` of one is in tests/launching."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime import user_script
from harness.spec.run_spec import RunSpec
from tests.support.markdown_blocks import ROOT, read_blocks
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import JOBS
from tests.support.training.runtime_helpers import metric_lines, write_run

EXAMPLES = {b.file: b.text for b in read_blocks(ROOT / "docs" / "own-models.md") if b.file and b.file.endswith(".py")}
SCRIPT, OWN_LOOP, PLUGIN = EXAMPLES["train.py"], EXAMPLES["own_loop.py"], EXAMPLES["mlp.py"]
STEPS = 4


def write(folder: Path, code: str, ranks: int = 2, *, as_plugin: bool = False, **spec: Any) -> tuple[str, str]:
    """A run of this file: its directory, and the sha256 that allows it."""
    folder.mkdir()
    file = folder / "code.py"
    file.write_text(code)
    values = {
        "objective": "custom",
        "plugins": {"file" if as_plugin else "script": str(file)},
        "train": {"max_steps": STEPS, "per_device_train_batch_size": 2},
        "optimizer": {"learning_rate": 0.01},
        "zero": {"stage": 2},
        "checkpoint": {"save_steps": STEPS // 2},
        "logging": {"logging_steps": 1},
        **spec,
    }
    run = resolve_run(RunSpec.model_validate_json(json.dumps(values)), world_size=ranks)
    directory = write_run(folder / "run", values, dict(render_ds_config(run).config), world_size=ranks)
    return str(directory), hashlib.sha256(file.read_bytes()).hexdigest()


def statuses_of(run: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(Path(run, "status").glob("rank-*.json"))]


def test_a_script_trains_as_its_plugin_and_resumes_to_the_bit(forked: ForkedRanks, tmp_path: Path) -> None:
    after = "import signal\nprint('after training', signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    run, allowed = write(tmp_path / "a", f"{SCRIPT}\n{after}")
    printed = forked.run(JOBS / "run_user_script.py", run, allowed)
    assert [status["state"] for status in statuses_of(run)] == ["completed", "completed"]
    assert "after training True" in printed["output"][0]
    same = PLUGIN.replace('0 if split == "train" else 1', "0").replace('256 if split == "train" else 51', "307")
    plugin = same.replace("for row in x]", "for row in (x[:256] if split == 'train' else x[256:])]")
    job = {"run": None, "resume": None}
    job["run"], job["allow"] = write(tmp_path / "b", plugin, as_plugin=True)
    (tmp_path / "jobs.json").write_text(json.dumps([job]))
    forked.run(JOBS / "train_own.py", str(tmp_path / "jobs.json"))
    losses = [line["loss"] for line in metric_lines(Path(run), "step")]
    assert losses == [line["loss"] for line in metric_lines(Path(str(job["run"])), "step")]
    assert metric_lines(Path(run), "eval")[-1]["loss"] == metric_lines(Path(str(job["run"])), "eval")[-1]["loss"]

    again, allowed = write(tmp_path / "c", f"{SCRIPT}\n{after}")
    forked.run(JOBS / "run_user_script.py", again, allowed, str(Path(run, "checkpoints", f"step-{STEPS // 2:08}")))
    assert [line["loss"] for line in metric_lines(Path(again), "step")] == losses[STEPS // 2 :]


def test_a_loop_of_its_own_has_the_rendered_json_and_completes(forked: ForkedRanks, tmp_path: Path) -> None:
    code = (
        OWN_LOOP
        + "print(engine.zero_optimization_stage(), engine.train_batch_size(), os.environ['ACCELERATE_USE_DEEPSPEED'])\n"
    )
    run, allowed = write(tmp_path / "a", code)
    printed = forked.run(JOBS / "run_user_script.py", run, allowed)
    assert "2 4 true" in printed["output"][0]
    assert [(s["state"], s["phase"], s["step"]) for s in statuses_of(run)] == [("completed", "step", 0)] * 2
    assert Path(run, "checkpoints_of_mine", "latest").is_file()


LOOK = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["HARNESS_RUN_DIR"], "status")
status = json.loads((folder / f"rank-{int(os.environ['RANK']):05d}.json").read_text())
print("then", status["state"], status["phase"], status["step"])
"""


def test_the_run_ends_with_the_file_and_not_with_training(forked: ForkedRanks, tmp_path: Path) -> None:
    run, allowed = write(tmp_path / "a", SCRIPT + LOOK)
    printed = forked.run(JOBS / "run_user_script.py", run, allowed)
    assert f"then running end {STEPS}" in printed["output"][0]
    assert [(s["state"], s["step"]) for s in statuses_of(run)] == [("completed", STEPS)] * 2
    run, allowed = write(tmp_path / "b", SCRIPT + "\nraise ValueError('late')\n")
    forked.run(JOBS / "run_user_script.py", run, allowed)
    assert [s["state"] for s in statuses_of(run)] == ["failed", "failed"]


def test_a_stop_ends_the_script_in_train(forked: ForkedRanks, tmp_path: Path) -> None:
    run, allowed = write(tmp_path / "a", SCRIPT + LOOK)
    Path(run, "stop").touch()
    printed = forked.run(JOBS / "run_user_script.py", run, allowed)
    assert "then" not in printed["output"][0]
    assert [s["state"] for s in statuses_of(run)] == ["stopped", "stopped"]
    assert statuses_of(run)[0]["step"] < STEPS


def test_a_loop_of_its_own_that_was_to_stop_has_stopped(forked: ForkedRanks, tmp_path: Path) -> None:
    """SIGUSR1 is blocked in what the supervisor starts; the script gets it, and its annotations are values."""
    code = (
        "import signal\n"
        "assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "signal.raise_signal(signal.SIGUSR1)\n"
        "class Row:\n    size: int\n"
        "assert Row.__annotations__['size'] is int\n"
    )
    run, allowed = write(tmp_path / "a", code + OWN_LOOP)
    Path(run, "stop").touch()
    forked.run(JOBS / "run_user_script.py", run, allowed, "blocked")
    assert [(s["state"], s.get("error")) for s in statuses_of(run)] == [("stopped", None)] * 2


def test_the_arguments_of_python_file_are_those_of_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command[3:]))
    for arguments in ([], ["--lr", "3", "a b"]):
        monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), *arguments])
        user_script._launch_this_file("own.yaml")
    launch = ["launch", "--script", str(tmp_path / "train.py"), "own.yaml"]
    assert commands == [launch, [*launch, "--set", 'plugins.script_args=["--lr", "3", "a b"]']]


HOSTILE = {
    "nothing": ("import torch\n", "has ended, and trained nothing"),
    "error": (
        "def f():\n    return 1 / 0\n\n\nf()\n",
        "the script fails in line 2: ZeroDivisionError: division by zero",
    ),
    "exit": ("import sys\nsys.exit('no data')\n", "the script ended with `sys.exit('no data')`"),
    "module": (SCRIPT.replace("harness.train(model,", "harness.train(7,"), "the module of `harness.train` is a `int`"),
    "dataset": (SCRIPT.replace("rows[:256],", "5,"), "`dataset` is a `int`"),
    "loss": (SCRIPT.replace('batch["y"])', 'batch["z"])', 1), "`loss` of the script fails in line 12: KeyError: 'z'"),
    "twice": (SCRIPT + "harness.train(model, rows, loss=loss)\n", "`harness.train` is called a second time"),
    "objective": (SCRIPT, "`harness.train` trains `objective: custom`, the spec has `causal_lm`"),
    "bytes": (SCRIPT, "is not the file that was allowed: its bytes differ"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_wrong_script_is_one_finding(forked: ForkedRanks, tmp_path: Path, name: str) -> None:
    code, message = HOSTILE[name]
    run, allowed = write(tmp_path / name, code, ranks=1, **({"objective": "causal_lm"} if name == "objective" else {}))
    forked.run(JOBS / "run_user_script.py", run, "0" * 64 if name == "bytes" else allowed, ranks=1)
    (status,) = statuses_of(run)
    assert status["state"] == "failed"
    assert message in status["error"]
    assert status["refused"] == (name not in ("error", "exit"))
