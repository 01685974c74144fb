# SPDX-License-Identifier: Apache-2.0
"""The README: short, with what was run and what was not before everything else. Its blocks are tested in `docs/`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import harness
from harness.cli.app import build_app
from tests.support.markdown_blocks import read_blocks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 170
    assert max(map(len, lines)) <= 140


def test_the_status_comes_before_the_first_section() -> None:
    head = README.partition("\n## ")[0]
    assert "DeepSpeed 0.19.8" in head
    assert "GPU" in head


def test_the_two_commands_are_there() -> None:
    commands = {
        line.split("#")[0].strip() for block in read_blocks(ROOT / "README.md") for line in block.text.splitlines()
    }
    assert {"make demo", "make test"} <= commands


def test_specs_that_are_shown_without_a_name_are_valid(tmp_path: Path) -> None:
    (block,) = [b for b in read_blocks(ROOT / "docs" / "spec.md") if b.text.startswith("model:") and b.file is None]
    spec = tmp_path / "spec.yaml"
    spec.write_text(block.text, encoding="utf-8")
    result = CliRunner().invoke(build_app(["validate-config"]), ["validate-config", str(spec)])
    assert "\nOK." in result.output, "only its data is not here\n" + result.output


@pytest.mark.parametrize("recipe", sorted((ROOT / "ds_configs").glob("*.yaml")), ids=lambda p: p.stem)
@pytest.mark.parametrize("command", ["validate-config", "render --check"])
def test_every_recipe_validates_and_renders_to_its_json(recipe: Path, command: str) -> None:
    name, *options = command.split()
    result = CliRunner().invoke(build_app([name]), [name, str(recipe), *options])
    assert result.exit_code == 0, result.output
    assert "warning" not in result.output


def test_the_version_has_one_place() -> None:
    result = CliRunner().invoke(build_app([]), ["--version"])
    assert result.output.splitlines()[0] == f"harness {harness.__version__}"
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"## [{harness.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_page_about_ci_names_no_tag_that_does_not_exist() -> None:
    ci = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert not re.findall(r"\bv\d+\.\d+", ci)
    assert "address and `rev` are placeholders" in ci


def test_the_release_of_torch_is_the_same_everywhere() -> None:
    pinned = r"torch==(\d+\.\d+\.\d+)"
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "README.md", "docs/limits.md")]
    (release,) = {found for text in texts for found in re.findall(pinned, text)}
    assert f"| torch | {release}," in texts[-1]


def test_the_page_about_limits_has_the_bounds_of_every_package() -> None:
    rows = dict(
        re.findall(r"^\| (\w+) \| \d[^|]*\| (\d[\d.]*) or newer", (ROOT / "docs/limits.md").read_text(), re.MULTILINE)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(project["train"] + project["qlora"]), re.MULTILINE))
    assert {name.lower(): bound for name, bound in rows.items()}.items() <= bounds.items()
    assert {"torch", "transformers", "peft"} <= rows.keys()


def test_no_text_installs_the_harness_from_an_index() -> None:
    """It is on none: the help of a finding names a command that works."""
    pages = [
        page for page in (ROOT / "docs").glob("*.md") if page.name != "limits.md"
    ]  # which says that it does not work
    texts = [*(ROOT / "harness").rglob("*.py"), *pages, ROOT / "README.md"]
    assert not [
        path for path in texts if re.search(r"pip install '?deepspeed-harness", path.read_text(encoding="utf-8"))
    ]
