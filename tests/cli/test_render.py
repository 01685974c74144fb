# SPDX-License-Identifier: Apache-2.0
"""`harness render`: print, compare, write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_validate_config import SPEC, run


def test_the_json_is_the_output(write):
    result = run("render", write("a.yaml", SPEC), "--world-size", "2")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["train_batch_size"] == 4


def test_write_then_check_then_drift(write):
    spec = write("a.yaml", SPEC)
    beside = Path(spec).with_suffix(".json")
    missing = run("render", spec, "--check")
    assert missing.exit_code == 1
    assert "RN001" in missing.stderr
    assert run("render", spec, "--write").exit_code == 0
    assert run("render", spec, "--check").exit_code == 0
    beside.write_text(beside.read_text().replace('"stage": 1', '"stage": 2'))
    drifted = run("render", spec, "--check")
    assert drifted.exit_code == 1
    assert "RN002" in drifted.stderr
    line = beside.read_text().splitlines().index('    "stage": 2') + 1
    assert f"{beside}:{line}:1" in drifted.stderr
    assert '-    "stage": 2' in drifted.stdout


def test_several_specs_are_checked_and_written_in_one_call(write):
    specs = [write(f"{name}.yaml", SPEC.replace("max_steps: 1", f"max_steps: {n}")) for n, name in enumerate("abc", 1)]
    assert run("render", *specs, "--write").exit_code == 0
    checked = run("render", *specs, "--check")
    assert checked.exit_code == 0
    assert checked.stdout.count("OK. ") == 3
    second = Path(specs[1]).with_suffix(".json")
    second.write_text(second.read_text().replace('"stage": 1', '"stage": 2'))
    Path(specs[0]).write_text("zero: {stage: 9}\n")
    drifted = run("render", *specs, "--check")
    assert drifted.exit_code == 1
    assert (drifted.stdout.count("OK. "), drifted.stderr.count("RN002"), drifted.stderr.count("SP007")) == (1, 1, 1)
    for options in ([], ["--output", "x.json"], ["--reasons"]):
        refused = run("render", *specs, *options)
        assert refused.exit_code == 2
        assert "add `--check` or `--write`" in refused.stderr


def test_a_wrong_spec_renders_nothing(write):
    spec = write("a.yaml", "zero: {stage: 9}\n")
    result = run("render", spec, "--write")
    assert result.exit_code == 1
    assert "Nothing was rendered." in result.stderr
    assert not Path(spec).with_suffix(".json").exists()


def test_reasons_name_the_key_of_the_spec(write):
    result = run("render", write("a.yaml", SPEC), "--reasons")
    assert any(
        line.startswith("zero_optimization.stage") and "`zero.stage`" in line for line in result.stdout.splitlines()
    )


def test_a_place_that_cannot_be_written(write):
    result = run("render", write("a.yaml", SPEC), "--output", "/nowhere/at/all.json")
    assert result.exit_code == 2
    assert "RN003" in result.stderr


@pytest.mark.parametrize("asked", ["PP001", "pp001"])
def test_explain_prints_the_page(asked):
    result = run("explain", asked)
    assert result.exit_code == 0
    assert "## Use instead" in result.stdout


def test_explain_lists_and_suggests():
    assert "SP005" in run("explain", "--list").stdout
    assert run("explain", "--table").stdout.startswith("# Every gate")
    wrong = run("explain", "PP0O1")
    assert wrong.exit_code == 2
    assert "did you mean `PP001`?" in wrong.stderr


def test_schema_is_json():
    assert json.loads(run("schema").stdout)["properties"]["zero"]


def test_the_spec_itself_is_never_written_over(write):
    text = json.dumps(
        {
            "model": {"name_or_path": "x"},
            "data": {"train": "y"},
            "train": {"max_steps": 1, "per_device_train_batch_size": 1},
        }
    )
    spec = write("spec.json", text)
    for options in (["--write"], ["--output", spec]):
        result = run("render", spec, *options)
        assert result.exit_code == 2
        assert "RN003" in result.stderr
    assert Path(spec).read_text() == text


def test_a_link_is_followed_and_a_folder_stays(write, tmp_path):
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    assert run("render", write("a.yaml", SPEC), "--output", str(link)).exit_code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())
    assert run("render", write("a.yaml", SPEC), "--output", str(tmp_path)).exit_code == 2


def test_standard_input_has_nothing_beside_it():
    assert run("render", "-", "--write", stdin=SPEC).exit_code == 2
