# SPDX-License-Identifier: Apache-2.0
"""The action and the pre-commit hook on a checkout of a stranger, each step run by bash as GitHub's runner does."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import SPEC, run_command
from tests.test_hooks import ACTION, BAD, GOOD, HOOKS, ROOT, steps

PROGRAMS = str(Path(sys.executable).parent)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "ds_config.json").write_text(GOOD)
    return folder


def check(checkout: Path, **inputs: str) -> Any:
    action = checkout.parent / "action"
    action.mkdir(exist_ok=True)
    (result,) = steps(checkout, {k.replace("_", "-"): v for k, v in inputs.items()}, action, PROGRAMS, "Check")
    return result


MODULES = (
    "pip harness typer click yaml json pydantic typing_extensions torch numpy encodings site sitecustomize usercustomize "
    "conftest setup importlib _virtualenv distutils-precedence"
).split()


@Attempt("A1", "Python modules of the checkout under every name that a step imports", "`pip.py` ran", "none runs")
def test_modules(checkout: Path) -> None:
    mark = checkout.parent / "ran"
    for name in MODULES:
        (checkout / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
        (checkout / name).mkdir()
        (checkout / name / "__init__.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
    (checkout / "x.pth").write_text(f"import os; open({str(mark)!r}, 'a').write('pth')\n")
    action = checkout.parent / "action"
    action.mkdir()
    steps(checkout, {}, action, PROGRAMS, "Install the harness, Check")
    assert not mark.exists(), mark.read_text()


@Attempt(
    "A2",
    "`pip.conf`, `setup.cfg`, `pyproject.toml`, `.env`, `.pypirc` of the checkout",
    "not read",
    "not read: pip runs elsewhere",
)
def test_settings_files(checkout: Path) -> None:
    install = next(step for step in ACTION["runs"]["steps"] if step.get("name") == "Install the harness")
    assert install["working-directory"] == "${{ runner.temp }}"
    assert "python -I -m pip" in install["run"]
    for name in ("pip.conf", "setup.cfg", "pyproject.toml", ".env", ".pypirc", "harness.toml", ".harness.yaml"):
        (checkout / name).write_text("[tool.harness]\nignore = ['SP005']\n[global]\nindex-url = http://evil\n")
    (checkout / "bad_ds_config.json").write_text(BAD)
    assert check(checkout).returncode == 1


@pytest.mark.parametrize(
    "name",
    [
        attempt_param(
            Attempt("A3", "a file called `--select=ZZ.yaml`", "taken as an option", "a file: names follow `--`"),
            "--select=ZZ.yaml",
        ),
        attempt_param(
            Attempt("A4", "a file called `--stdin-filename=x.yaml`", "taken as an option", "a file"),
            "--stdin-filename=x.yaml",
        ),
        attempt_param(
            Attempt("A5", "a file called `$(touch ran).yaml`", "nothing ran", "nothing runs"), "$(touch ran).yaml"
        ),
        attempt_param(
            Attempt("A6", "a file called `; touch ran;.yaml`", "nothing ran", "nothing runs"), "; touch ran;.yaml"
        ),
        attempt_param(Attempt("A7", "a file called `a b.yaml`", "one file", "one file"), "a b.yaml"),
        attempt_param(
            Attempt("A8", "a file name with `::stop-commands::`", "a workflow command", "escaped"),
            "a\n::stop-commands::x\n.yaml",
        ),
    ],
)
def test_file_names(name: str, checkout: Path) -> None:
    (checkout / name).write_text(SPEC + "zero_optimisation: 1\n")
    result = check(checkout, files="*.yaml")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "zero_optimisation" in result.stdout
    assert not (checkout / "ran").exists()
    assert not re.search(r"^::(?!error|warning|notice)", result.stdout + result.stderr, re.MULTILINE)


@Attempt(
    "A9", "a file called `--ignore=SP005` where `args` has a pattern", "becomes an option", "`args` has no patterns"
)
def test_patterns_in_args(checkout: Path) -> None:
    (checkout / "bad_ds_config.json").write_text(BAD)
    (checkout / "--ignore=SP005").write_text("")
    result = check(checkout, files="bad_ds_config.json", args="--ignore=SP00?")
    assert result.returncode != 0
    assert "bad_ds_config.json" not in result.stderr or "SP00?" in result.stdout + result.stderr


@Attempt(
    "A10",
    "`sarif-file` is a link of the checkout to a file of the runner",
    "that file is overwritten",
    "the link is replaced",
)
def test_sarif_link(checkout: Path) -> None:
    victim = checkout.parent / "victim"
    victim.write_text("precious")
    (checkout / "out.sarif").symlink_to(victim)
    assert check(checkout, sarif_file="out.sarif").returncode == 0
    assert victim.read_text() == "precious"
    assert yaml.safe_load((checkout / "out.sarif").read_text())["version"] == "2.1.0"


@Attempt(
    "A11", "the folder of `sarif-file` is a link out of the checkout", "a file is written there", "refused, exit 2"
)
def test_sarif_folder_link(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("home")
    (checkout / "out").symlink_to(outside)
    result = check(checkout, sarif_file="out/x.sarif")
    assert result.returncode == 2
    assert list(outside.iterdir()) == []


@Attempt(
    "A12",
    "expressions in inputs: `$(...)`, backticks, quotes",
    "text of variables",
    "text of variables, never of a script",
)
def test_inputs(checkout: Path) -> None:
    evil = "$(touch ran) `touch ran` \"; touch ran; ' && touch ran"
    for name in ("files", "args", "deepspeed_version", "sarif_file"):
        check(checkout, **{name: evil})
    assert not (checkout / "ran").exists()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


@Attempt(
    "A13",
    "a spec that writes workflow commands into the log of the action",
    "`::stop-commands::` in the text output",
    "escaped",
)
def test_log(checkout: Path) -> None:
    (checkout / "s.yaml").write_text(SPEC + '"zz\\n::stop-commands::t\\n::add-mask::a\\n##[error]x": 1\n')
    result = check(checkout)
    assert result.returncode == 1
    lines = (result.stdout + result.stderr).splitlines()
    assert not [line for line in lines if re.match(r"\s*(::(?!error|warning|notice)|##\[)", line)]


@Attempt(
    "A14",
    "the action asks for more rights than to read",
    "`contents: read`",
    "`contents: read`, no `pull_request_target`, no secrets",
)
def test_rights() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert yaml.safe_load(workflow)["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in workflow
    assert "secrets." not in workflow + (ROOT / "action.yml").read_text()


@Attempt("A15", "an action of others that moves its tag", "named by tag", "Python's is named by commit")
def test_pinned_actions() -> None:
    uses = re.findall(
        r"uses: (\S+)", (ROOT / "action.yml").read_text() + (ROOT / ".github/workflows/ci.yml").read_text()
    )
    moving = {name for name in uses if not re.search(r"@[0-9a-f]{40}$", name)}
    assert moving == {"github/codeql-action/upload-sarif@v3"}, "which runs only where `sarif-file` is given"


@Attempt(
    "A16",
    "a file called `--set=zero.stage=1 #deepspeed.json` for the pre-commit hook",
    "taken as an option: OK",
    "refused, exit 2",
)
def test_hook_names(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = HOOKS
    monkeypatch.chdir(checkout)
    Path("ds_config.yaml").write_text(SPEC.replace("stage: 3", "stage: 7"))
    name = "--set=zero.stage=1 #deepspeed.json"
    Path(name).write_text("{}")
    assert re.search(hook["files"], name)
    answer = run_command(*hook["entry"].split()[1:], *hook.get("args", ()), name, "ds_config.yaml")
    assert answer.code == 2
    assert "would be read as an option" in answer.text


@Attempt(
    "A17",
    "`validate-config` starts a program, connects, unpickles or imports from the checkout",
    "nothing",
    "nothing, by Python's audit events",
)
def test_audit(checkout: Path, tmp_path: Path) -> None:
    from tests.security.started_programs import watch_command

    (checkout / "m").mkdir()
    (checkout / "m/config.json").write_text('{"model_type": "gpt_neo", "auto_map": {"AutoConfig": "evil.C"}}')
    (checkout / "m/evil.py").write_text("raise SystemExit(77)\n")
    (checkout / "s.yaml").write_text(
        SPEC.replace(SPEC.splitlines()[0], "model: {name_or_path: ./m, trust_remote_code: true}")
    )
    for command in (["validate-config", "."], ["render", "s.yaml"], ["adopt", "ds_config.json"], ["schema"], ["runs"]):
        seen = watch_command(command, checkout, tmp_path)
        assert seen.starts == seen.connects == seen.unpickles == [], command
        assert seen.imported_below(checkout) == []
