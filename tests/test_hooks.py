# SPDX-License-Identifier: Apache-2.0
"""The pre-commit hook and the GitHub action that other repositories use, each really run in a temporary folder.

Both install the project from a copy of this tree into an environment of their own, which needs a package registry and
takes about half a minute each. pre-commit comes with the development extra; where it is not installed, the hook's own
test is not there (the light tier).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
CI_PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
GOOD = '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}\n'
BAD = '{"train_batch_size": 8, "zero_optimisation": {"stage": 2}}\n'
GIT = (
    "git",
    "-c",
    "user.name=x",
    "-c",
    "user.email=x@example.org",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "init.defaultBranch=main",
)


def sh(*command: str, cwd: Path, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PRE_COMMIT", "VIRTUAL_ENV", "PYTEST"))}
    result = subprocess.run(command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True, check=False)
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This working tree as a git repository of its own, with what is not committed yet."""
    copy = tmp_path_factory.mktemp("harness")
    listed = sh("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    sh(*GIT, "init", "-q", cwd=copy)
    sh(*GIT, "add", "-A", cwd=copy)
    sh(*GIT, "commit", "-qm", "copy", "--no-verify", cwd=copy)
    return copy


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's repository."""
    folder = tmp_path / "theirs"
    for name, text in {
        "good/ds_config.json": GOOD,
        "bad/ds_config.json": BAD,
        "package.json": "{}\n",
        "ci.yaml": "a: 1\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sh(*GIT, "init", "-q", cwd=folder)
    sh(*GIT, "add", "-A", cwd=folder)
    return folder


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("ds_config.json", True),
        ("configs/ds_config_zero3.json", True),
        ("deepspeed/zero2.json", True),
        ("ds_configs/llama.yaml", True),
        ("ds_z3_offload_config.json", True),
        ("conf/DeepSpeed-stage2.YAML", True),
        ("accelerate_deepspeed.yml", True),
        ("package.json", False),
        ("config.json", False),
        ("deepspeed.py", False),
        (".github/workflows/ci.yaml", False),
        ("ds_configs/README.md", False),
    ],
)
def test_the_hook_takes_what_is_named_like_a_configuration(name: str, taken: bool) -> None:
    (hook,) = HOOKS
    assert bool(re.search(hook["files"], name)) is taken


def test_the_hook_runs_an_installed_command() -> None:
    (hook,) = HOOKS
    assert hook["entry"].split()[0] in (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2]
    assert set(hook) <= set("id name description entry language files types_or require_serial args".split())
    assert hook["id"] in CI_PAGE


if find_spec("pre_commit") is not None:

    def test_pre_commit_runs_the_hook(tree: Path, repository: Path, tmp_path: Path) -> None:
        revision = sh("git", "rev-parse", "HEAD", cwd=tree).stdout.strip()
        hook = {"id": "validate-config", "args": ["--strict"]}
        config = {"repos": [{"repo": str(tree), "rev": revision, "hooks": [hook]}]}
        (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
        sh("git", "add", "-A", cwd=repository)
        home = {"PRE_COMMIT_HOME": str(tmp_path / "cache")}
        command = (sys.executable, "-m", "pre_commit", "run", "validate-config")
        everything = sh(*command, "--all-files", cwd=repository, check=False, **home)
        assert everything.returncode == 1, everything.stdout + everything.stderr
        assert "error[SP005]: `zero_optimisation` is not a key" in everything.stdout
        assert "  --> bad/ds_config.json:1:25" in everything.stdout
        assert "package.json" not in everything.stdout
        one = sh(*command, "--files", "good/ds_config.json", cwd=repository, check=False, **home)
        assert one.returncode == 0, one.stdout + one.stderr
        assert "Passed" in one.stdout


def test_the_action_has_only_what_github_knows() -> None:
    assert set(ACTION) <= {"name", "author", "description", "inputs", "outputs", "runs", "branding"}
    assert {"name", "description", "runs"} <= set(ACTION)
    for name, given in ACTION["inputs"].items():
        assert re.fullmatch(r"[a-z_][a-z0-9_-]*", name)
        assert set(given) <= {"description", "required", "default", "deprecationMessage"}
        assert given["description"]
        assert isinstance(given.get("default", ""), str), "GitHub has only texts"
    assert set(ACTION["runs"]) == {"using", "steps"}
    assert ACTION["runs"]["using"] == "composite"
    known = {"id", "name", "if", "env", "continue-on-error", "run", "shell", "working-directory", "uses", "with"}
    for step in ACTION["runs"]["steps"]:
        assert set(step) <= known
        assert ("run" in step) != ("uses" in step)
        assert ("run" in step) == ("shell" in step), "a composite action must name the shell"
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@(v\d+|[0-9a-f]{40})", step["uses"])


def test_no_input_is_part_of_a_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an expression in a script is a way to run anything"


def test_every_expression_is_of_an_input_that_exists() -> None:
    used = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])
    assert all(f"`{name}`" in CI_PAGE for name in ACTION["inputs"])


def test_what_the_page_shows_is_right() -> None:
    hooks, workflow = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", CI_PAGE, re.DOTALL))
    assert {hook["id"] for repo in hooks["repos"] for hook in repo["hooks"]} == {hook["id"] for hook in HOOKS}
    assert set(workflow["steps"][-1]["with"]) <= set(ACTION["inputs"])
    help_ = sh(sys.executable, "-m", "harness", "validate-config", "--help", cwd=ROOT).stdout
    assert all(option in help_ for option in re.findall(r"(?<=`)--[a-z-]+", CI_PAGE))


def substituted(env: dict[str, str], inputs: dict[str, str], action: Path) -> dict[str, str]:
    values = {f"inputs.{k}": inputs.get(k, str(v.get("default", ""))) for k, v in ACTION["inputs"].items()}
    values |= {"github.action_path": str(action), "runner.temp": str(action.parent)}
    return {name: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda m: values[m[1]], text) for name, text in env.items()}


def steps(repository: Path, inputs: dict[str, str], action: Path, path: str, names: str) -> list[Any]:
    """Run the steps with these names as the runner does it: `bash --noprofile --norc -eo pipefail`."""
    results = []
    for step in ACTION["runs"]["steps"]:
        if step.get("name") in names.split(", "):
            env = substituted(step["env"], inputs, action)
            folder = substituted({"cwd": step.get("working-directory", str(repository))}, inputs, action)["cwd"]
            script = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"])
            search = f"{path}{os.pathsep}{os.environ['PATH']}"
            results.append(sh(*script, cwd=Path(folder), check=False, PATH=search, **env))
    return results


@pytest.mark.parametrize(
    ("inputs", "code", "said"),
    [
        ({"files": "good/ds_config.json"}, 0, "OK. "),
        ({"files": "good/*.json bad"}, 1, "::error file=bad/ds_config.json,line=1,col=25,"),
        ({}, 1, "Found 1 error"),
        ({"files": "good", "args": "--world-size 3"}, 1, "::error file=good/ds_config.json"),
        ({"files": "good", "deepspeed-version": "0.18.9"}, 0, "0.18.9 (requested)"),
        ({"files": "good", "deepspeed-version": "new"}, 2, "::error title=SP011::"),
        ({"files": "good; touch pwned $(touch pwned)"}, 2, "cannot be read"),
    ],
)
def test_the_check_of_the_action(inputs: dict[str, str], code: int, said: str, repository: Path) -> None:
    (result,) = steps(repository, inputs, ROOT, str(Path(sys.executable).parent), "Check")
    assert result.returncode == code, result.stdout + result.stderr
    assert said in result.stdout
    assert not (repository / "pwned").exists()


MODULES = ("pip", "harness", "typer", "yaml", "json", "sitecustomize", "usercustomize")


def test_no_code_of_the_repository_that_is_checked_runs(repository: Path, tmp_path: Path) -> None:
    """Every module that a step could take for its own leaves a mark; pip itself may well end with an error here."""
    mark = tmp_path / "ran"
    for name in MODULES:
        (repository / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
    names = "Install the harness, Check"
    action = tmp_path / "action"  # nothing to install, so that no registry is asked
    action.mkdir()
    steps(repository, {"files": "good"}, action, str(Path(sys.executable).parent), names)
    assert not mark.exists(), mark.read_text()


@pytest.mark.parametrize("name", ["--select=ZZ.yaml", "--fix.yaml", "-x.yaml"])
def test_a_file_called_like_an_option_is_a_file(name: str, repository: Path) -> None:
    (repository / name).write_text(BAD.replace("{", "{ "))
    path = str(Path(sys.executable).parent)
    (result,) = steps(repository, {"files": "*.yaml", "args": "--strict"}, ROOT, path, "Check")
    assert result.returncode == 1, result.stdout + result.stderr
    assert name in result.stdout


def test_the_action_installs_itself_and_writes_sarif(tree: Path, repository: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "python", with_pip=True)
    inputs = {"files": "bad", "sarif-file": "out.sarif"}
    path = str(tmp_path / "python" / "bin")
    install, check = steps(repository, inputs, tree, path, "Install the harness, Check")
    assert install.returncode == 0, install.stdout + install.stderr
    assert check.returncode == 1, check.stdout + check.stderr
    assert yaml.safe_load((repository / "out.sarif").read_text())["version"] == "2.1.0"
