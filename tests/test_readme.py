# SPDX-License-Identifier: Apache-2.0
"""The README's examples are run, and its outputs are what the program prints. Rewrite them with README_WRITE=1."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import COMMANDS, build_app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FILES = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"```console\n\$ harness (.*?)\n(.*?)```", re.DOTALL)


def printed(command: str, folder: Path) -> str:
    arguments = shlex.split(command)
    here = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner(env={"COLUMNS": "100"}).invoke(build_app(arguments), arguments).output
    finally:
        os.chdir(here)


@pytest.fixture
def examples(tmp_path):
    for name, text in FILES.findall(README.read_text()):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_outputs_shown_are_what_is_printed(examples):
    text = README.read_text()
    for command, shown in CONSOLE.findall(text):
        actual = printed(command, examples)
        if os.environ.get("README_WRITE"):
            text = text.replace(f"$ harness {command}\n{shown}```", f"$ harness {command}\n{actual}```")
        else:
            assert shown == actual, f"{command}: to write it, README_WRITE=1 pytest tests/test_readme.py"
    if os.environ.get("README_WRITE"):
        README.write_text(text)
    assert len(CONSOLE.findall(text)) >= 3


def test_every_command_is_in_the_table():
    assert set(re.findall(r"^\| `harness ([a-z-]+)", README.read_text(), re.MULTILINE)) == set(COMMANDS)


def test_every_link_leads_somewhere():
    for file in [README, *ROOT.glob("*/README.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", file.read_text()):
            assert (file.parent / target).exists(), f"{file}: {target}"


def test_the_spec_in_the_readme_is_a_valid_one(examples, write):
    block = re.search(r"```yaml\n(model:      .*?)```", README.read_text(), re.DOTALL)
    result = printed(f"validate-config {write('readme.yaml', block[1])}", examples)
    assert result.startswith("OK."), result


def test_every_recipe_is_in_its_table_and_has_its_json():
    text = (ROOT / "ds_configs" / "README.md").read_text()
    recipes = sorted(p.stem for p in (ROOT / "ds_configs").glob("*.yaml"))
    assert sorted(re.findall(r"^\| `([\w.-]+)`", text, re.MULTILINE)) == recipes
    assert sorted(p.stem for p in (ROOT / "ds_configs").glob("*.json")) == recipes


@pytest.mark.parametrize("recipe", sorted((ROOT / "ds_configs").glob("*.yaml")), ids=lambda p: p.stem)
@pytest.mark.parametrize("command", ["validate-config", "render --check"])
def test_every_recipe_validates_and_renders_to_its_json(recipe, command):
    name, *options = command.split()
    result = CliRunner().invoke(build_app([name]), [name, str(recipe), *options])
    assert result.exit_code == 0, result.output
    assert "warning" not in result.output


def test_every_number_comes_from_a_result_file():
    text = README.read_text()
    tables = re.findall(r"<!-- from (benchmarks/results/\S+) -->\n((?:\|.*\n)+)", text)
    assert tables, "the README shows what was measured"
    for file, table in tables:
        assert table in (ROOT / file).read_text(), file
    assert "<!-- table:" not in text
