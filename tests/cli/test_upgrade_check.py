# SPDX-License-Identifier: Apache-2.0
"""`harness upgrade-check` from the command line. Needs nothing; seconds."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app

PLAIN = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def run(*arguments, input=None):
    return CliRunner().invoke(build_app(["upgrade-check"]), ["upgrade-check", *map(str, arguments)], input=input)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(PLAIN))
    return path


def test_a_moved_default_is_an_error_with_a_fix(file):
    result = run(file, "--from", "0.19.2", "--to", "0.19.8")
    assert result.exit_code == 1
    assert "error[UP001]: the default of `gradient_clipping` is 1.0 from 0.19.3 on, it was 0.0" in result.stdout
    assert "help: write `gradient_clipping: 0.0` to keep it" in result.stdout
    assert "under DeepSpeed 0.19.8, coming from 0.19.2" in result.stdout


def test_nothing_changes(file):
    result = run(file, "--from", "0.19.7", "--to", "0.19.8")
    assert result.exit_code == 0
    assert "OK" in result.stdout


@pytest.mark.parametrize("format", ["json", "sarif", "github"])
def test_the_formats_of_validate_config(file, format):
    result = run(file, "--from", "0.19.2", "--to", "0.19.8", "--format", format)
    assert result.exit_code == 1
    assert "UP001" in result.stdout
    if format != "github":
        json.loads(result.stdout)


@pytest.mark.parametrize(
    ("releases", "words"),
    [
        (("0.19.8", "0.19.2"), "`--from 0.19.8` is newer than `--to 0.19.2`"),
        (("newest", "0.19.8"), "is not a version such as"),
    ],
)
def test_wrong_releases(file, releases, words):
    result = run(file, "--from", releases[0], "--to", releases[1])
    assert words in f"{result.output}{result.exception}"
    assert result.exit_code != 0


def test_standard_input_and_what_cannot_be_read():
    assert run("-", "--from", "0.19.2", "--to", "0.19.8", input=json.dumps(PLAIN)).exit_code == 1
    assert run("/nonexistent.json", "--from", "0.19.2", "--to", "0.19.8").exit_code == 2
