# SPDX-License-Identifier: Apache-2.0
"""The GitHub workflow calls `.ci/run` and says nothing itself that could differ from it. Needs nothing; a second."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.facts.deepspeed_version import FALLBACK_VERSION

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]
ACTIONS = {
    "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683",
    "actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065",
}
SCRIPT = (ROOT / ".ci" / "run").read_text()


def steps(job: str) -> list[dict[str, Any]]:
    return JOBS[job]["steps"]


def expressions(job: str) -> list[str]:
    """What stands between the double braces in a job."""
    return re.findall(r"\$\{\{ *(.*?) *\}\}", yaml.safe_dump(JOBS[job], width=10_000))


@pytest.mark.parametrize("job", JOBS)
def test_job_runs_one_script(job: str) -> None:
    commands = [step["run"] for step in steps(job) if "run" in step]
    words = {"quick": " quick", "deps": " deps ${{ matrix.set }}"}
    assert commands == [f".ci/run{words.get(job, '')}"]
    assert {step["uses"] for step in steps(job) if "uses" in step} == ACTIONS
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("job", JOBS)
def test_job_sets_variables_that_the_script_has(job: str) -> None:
    variables = {name for step in steps(job) for name in step.get("env", {})}
    assert "PYTHON" in variables
    for name in variables:
        assert re.search(rf"^#   {name} ", SCRIPT, re.MULTILINE)
    matrix = JOBS[job].get("strategy", {}).get("matrix", {})
    assert {e for e in expressions(job) if not e.startswith("github.")} == {
        f"matrix.{name}" for name in matrix if name != "include"
    }


def test_matrix_has_each_python_and_release_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    matrix = JOBS["nightly"]["strategy"]["matrix"]
    oldest = project["requires-python"].removeprefix(">=")
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert matrix["python"][0] == oldest
    assert matrix["deepspeed"] == [f"deepspeed=={FALLBACK_VERSION}"]
    assert f"${{DEEPSPEED:-deepspeed=={FALLBACK_VERSION}}}" in SCRIPT
    assert {"python": "3.12", "deepspeed": "deepspeed"} in matrix["include"]
    assert JOBS["quick"]["strategy"]["matrix"]["python"] == matrix["python"]
    assert steps("whole")[-1]["env"] == {"PYTHON": f"python{oldest}"}
    assert steps("upstream")[-1]["env"]["DEEPSPEED"].startswith("deepspeed @ git+")


def test_the_night_runs_what_a_push_leaves_out_and_is_red_when_red() -> None:
    assert steps("nightly")[-1]["env"]["HARNESS_NIGHTLY"] == "1"
    assert not any("continue-on-error" in job for job in JOBS.values())
    assert JOBS["deps"]["strategy"]["matrix"]["set"] == ["oldest", "default", "newest"]
    for name in ("oldest", "default"):
        assert (ROOT / "constraints" / f"{name}.txt").is_file()


def test_each_event_has_a_job() -> None:
    events = WORKFLOW[True]  # YAML 1.1 reads `on` as true
    assert set(events) == {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert all("schedule" in JOBS[name]["if"] for name in ("nightly", "upstream"))
    assert WORKFLOW["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("words", [["wholly"], ["deps"], ["deps", "older"], ["quick", "newest"]])
def test_an_unknown_word_is_refused_before_anything_is_removed(words: list[str]) -> None:
    done = subprocess.run([ROOT / ".ci" / "run", *words], capture_output=True, text=True, check=False)
    usage = "usage: .ci/run [quick | deps oldest | deps default | deps newest]\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", usage)


@pytest.mark.parametrize(
    "failing", [None, "light", "--ignore tests/training", "rehearsal tests", "--ignore=tests", "dataset tests"]
)
def test_the_suite_runs_each_folder_once_and_is_red_when_a_part_is(failing: str | None, tmp_path: Path) -> None:
    """With a Python that only tells its words, and fails where they have these."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/words\ncase "$*" in *"{failing}"*) exit 3 ;; esac\n')
    python.chmod(0o755)
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run([ROOT / ".ci" / "test", tmp_path], env=environ, capture_output=True, text=True, check=False)
    parts = [line.split() for line in (tmp_path / "words").read_text().splitlines()]
    if failing == "light":
        assert (done.returncode, len(parts)) == (3, 1)
        return
    named = [word for part in parts for word in part if word.startswith("tests/training/")]
    rest = next(part for part in parts if "tests/training" in part and "--ignore" not in part)
    left_out = [word.removeprefix("--ignore=") for word in rest if word.startswith("--ignore=")]
    assert sorted(named) == sorted(left_out)
    assert all((ROOT / name).is_dir() for name in named)
    assert ["-m", "pytest", "-m", "training", "--ignore", "tests/training"] in parts
    assert done.returncode == (3 if failing else 0)
