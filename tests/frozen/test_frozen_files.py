# SPDX-License-Identifier: Apache-2.0
"""Specs, run directories and checkpoints of earlier versions, read by this one. Needs no torch; seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.cli.app import build_app
from harness.run_records.run_record import read_run_record
from harness.verdicts import read_verdict
from tests.frozen.frozen_files import FROZEN, foreign_paths, frozen_runs, frozen_versions

RENDERED_DIFFERENTLY: dict[tuple[str, str], dict[str, str]] = {}
"""(version, spec) -> DeepSpeed keys that a later version renders differently on purpose, with the reason: what the
CHANGELOG says to whoever has such a spec. Without an entry, a spec means what it always meant.
"""
CASES = [(version, name) for version in frozen_versions() for name in frozen_runs(version)]
MAX_BYTES = 1_500_000


def call(*words: object) -> Result:
    arguments = [str(word) for word in words]
    return CliRunner().invoke(build_app(arguments), arguments)


def flatten(value: Any, key: str = "") -> dict[str, Any]:
    """Dotted keys of a JSON -> their values."""
    if not isinstance(value, dict):
        return {key: value}
    return {k: v for name, inner in value.items() for k, v in flatten(inner, f"{key}.{name}".strip(".")).items()}


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, Path]:
    """A version, the name of a spec, and a copy of its frozen run directory."""
    version, name = request.param
    source = frozen_runs(version)[name]
    return version, name, Path(shutil.copytree(source, tmp_path / "runs" / source.name))


def test_every_folder_has_a_spec_with_a_run() -> None:
    assert frozen_versions()
    assert {version for version, _ in CASES} == set(frozen_versions())
    for version in frozen_versions():
        assert json.loads((FROZEN / version / "frozen.json").read_text())["version"] == version
        assert len(list((FROZEN / version / "runs").iterdir())) == len(frozen_runs(version))


@pytest.mark.parametrize("version", frozen_versions())
def test_the_files_are_small_and_name_no_machine(version: str) -> None:
    assert sum(path.stat().st_size for path in (FROZEN / version).rglob("*") if path.is_file()) < MAX_BYTES
    assert foreign_paths(FROZEN / version) == []


def test_spec_is_valid_and_renders_the_same_json(case: tuple[str, str, Path]) -> None:
    version, name, _ = case
    spec = FROZEN / version / f"{name}.yaml"
    checked = call("validate-config", spec)
    assert checked.exit_code == 0, checked.output
    rendered = call("render", spec)
    assert rendered.exit_code == 0, rendered.output
    then, now = (flatten(json.loads(text)) for text in (spec.with_suffix(".json").read_text(), rendered.stdout))
    changed = {key for key in then | now if (key in then, then.get(key)) != (key in now, now.get(key))}
    assert changed == set(RENDERED_DIFFERENTLY.get((version, name), {}))


def test_run_directory_is_read_whole(case: tuple[str, str, Path]) -> None:
    _, name, run_dir = case
    record = read_run_record(run_dir)
    assert record.unusable == ()
    assert record.run is not None
    assert record.run.name == name
    assert [step for step, _ in record.points("step", "loss")] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in record.points("eval", "loss")] == [1, 2, 3, 4, 5, 6]
    verdict = read_verdict(run_dir)
    assert verdict is not None
    assert (verdict.state, verdict.code, verdict.step) == ("completed", 0, 6)


def test_runs_and_report_show_it(case: tuple[str, str, Path]) -> None:
    _, _, run_dir = case
    listed = call("runs", run_dir.parent, "--format", "json")
    assert listed.exit_code == 0, listed.output
    (line,) = json.loads(listed.stdout)["runs"]
    assert (line["name"], line["state"], line["step"]) == (run_dir.name, "completed", 6)
    assert "left out" not in listed.output
    reported = call("report", run_dir)
    assert reported.exit_code == 0, reported.output
    html = (run_dir / "report.html").read_text()
    for shown in ("2 checkpoints", "6 evaluations", "Memory, planned and measured", "AT001"):
        assert shown in html
    assert "left out" not in html


def test_checkpoint_is_listed_verified_and_shown(case: tuple[str, str, Path]) -> None:
    _, name, run_dir = case
    listed, verified, shown = (call("checkpoint", action, run_dir) for action in ("ls", "verify", "show"))
    assert [result.exit_code for result in (listed, verified, shown)] == [0, 0, 0], verified.output
    assert "1 complete in" in listed.stdout
    assert "1 of 1 intact; every byte was read" in verified.stdout
    fields = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines()[1:] if len(line.split()) > 1)
    assert fields["run"] == name
    assert (fields["state.step"], fields["state.best_step"], fields["state.evaluations_without_gain"]) == (
        "3",
        "1",
        "2",
    )


def test_a_changed_byte_is_noticed(case: tuple[str, str, Path]) -> None:
    """The frozen hashes are those of the frozen bytes: the tests above would see a checkout that rewrites line ends."""
    _, _, run_dir = case
    file = next(run_dir.glob("checkpoints/step-*/huggingface/config.json"))
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    verified = call("checkpoint", "verify", run_dir)
    assert verified.exit_code == 1
    assert "config.json" in verified.output
