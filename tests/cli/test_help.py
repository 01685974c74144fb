# SPDX-License-Identifier: Apache-2.0
"""`--help` by groups, short names, and the completion of shells. Needs bash; seconds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperOption
from typer.main import get_command
from typer.testing import CliRunner, Result

from harness.cli.app import build_app
from harness.cli.command_list import ALIASES, COMMAND_GROUPS, COMMANDS

PROGRAM = f"#!{sys.executable}\nfrom harness.__main__ import start\n\nstart()\n"
"""The console script; its name decides the name of the variable for completion."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(list(arguments)), list(arguments))


def test_the_commands_stand_below_the_headings_of_their_groups() -> None:
    lines = run("--help").stdout.splitlines()
    for heading, commands in COMMAND_GROUPS.items():
        start = lines.index(f"{heading}:")
        end = lines.index("", start) if "" in lines[start:] else len(lines)
        assert [line.split()[0] for line in lines[start + 1 : end] if not line.startswith("   ")] == list(commands)
    assert not any(line.split()[:1] == [alias] for line in lines for alias in ALIASES)


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = "import sys; from harness.cli.app import build_app; build_app(['--help']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {f"harness.cli.{command.function}" for command in COMMANDS.values()} & set(loaded)


@pytest.mark.parametrize(
    ("command", "headings"),
    [
        ("launch", ["Hosts", "Hosts without ssh", "Kubernetes", "Resume and restart", "Output"]),
        ("plan", ["Search", "Model and GPUs"]),
        ("validate-config", []),
    ],
)
def test_options_stand_below_the_headings_of_their_groups(command: str, headings: list[str]) -> None:
    shown = run(command, "--help").stdout
    assert re.findall(r"^(\w.*):$", shown, re.MULTILINE) == ["Arguments", "Options", *headings]
    assert shown.partition("\nOptions:")[2].partition("\n\n")[0].rstrip().splitlines()[-1].split()[:2] == [
        "-h,",
        "--help",
    ]
    if headings:
        assert (
            "--hostfile" in shown.partition("\nHosts:" if command == "launch" else "\nOptions:")[2].partition("\n\n")[0]
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_h_is_short_for_help(command: str) -> None:
    assert run(command, "-h").stdout == run(command, "--help").stdout
    assert run("-h").stdout == run("--help").stdout


@pytest.mark.parametrize("command", ["plan", "simulate", "checkpoint", "launch"])
def test_a_command_without_a_word_prints_its_help(command: str) -> None:
    without = run(command)
    assert without.exit_code == 2
    assert without.output.strip() == run(command, "--help").output.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_shown_once(command: str) -> None:
    application = get_command(build_app([command]))
    params = application.commands[command].params  # type: ignore[attr-defined]
    options = [param for param in params if param.param_type_name == "option" and not param.hidden]
    shown = run(command, "--help").stdout
    for option in options:
        assert len(re.findall(rf"^  (?:-\w, )?{re.escape(option.opts[0])}(?![\w-])", shown, re.MULTILINE)) == 1, (
            option.opts
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_and_examples_are_for_readers_and_for_copying(command: str) -> None:
    """No braces, no types of Python, and each example on one line that is a call of the command."""
    shown = run(command, "--help").stdout
    usage = " ".join(shown.partition("\n\n")[0].split())
    assert re.fullmatch(rf"Usage: \w+ {command} \[OPTIONS\](?: (?:\[?[A-Z|_]+\]?)(?:\.\.\.)?)*", usage), usage
    assert not re.search(r"<(?:str|list|int|float)\b", shown)
    (example,) = re.findall(r"^  Example: (.*)$", shown, re.MULTILINE)
    words = example.partition(" > ")[0].split()
    assert words[0] == "harness"
    assert words[1] == command
    options = get_command(build_app([command])).commands[command].params  # type: ignore[attr-defined]
    assert {word for word in words if word.startswith("-")} <= {name for option in options for name in option.opts}


def test_a_short_name_is_the_command(tmp_path: Path) -> None:
    spec = tmp_path / "a.json"
    spec.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 4}}', encoding="utf-8")
    short, long = run("check", str(spec)), run("validate-config", str(spec))
    assert (short.stdout, short.exit_code) == (long.stdout, 1)
    assert "'validate-config'?" in run("validate").output


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`harness` on the PATH, and a folder with two runs."""
    harness = tmp_path / "bin" / "harness"
    harness.parent.mkdir()
    harness.write_text(PROGRAM, encoding="utf-8")
    harness.chmod(0o755)
    for name in ("demo-1", "demo-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "spec.yaml").write_text("", encoding="utf-8")
    (tmp_path / "runs" / "latest").symlink_to("demo-2")
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", root)
    monkeypatch.setenv("PATH", f"{harness.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return harness


def complete(shell: str, line: str) -> str:
    """What the script of the shell gets for a line with the cursor at its end."""
    words = line.split(" ")
    bash = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    other = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    env = os.environ | {"_HARNESS_COMPLETE": f"complete_{shell}"} | (bash if shell == "bash" else other)
    return subprocess.run(["harness"], env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_commands_options_and_runs(shell: str, program: Path) -> None:
    names = complete(shell, "harness re")
    assert all(name in names for name in ("render", "rehearse", "report"))
    assert "plan" not in names
    assert "--resume" in complete(shell, "harness launch --re")
    runs = complete(shell, "harness report demo")
    assert "demo-1" in runs
    assert "demo-2" in runs
    assert "data.packing" in complete(shell, "harness explain data.pac")
    assert "gradient_clipping" in complete(shell, "harness explain gradient_")
    assert "zero.stage=" in complete(shell, "harness plan --set zero.st")
    source = subprocess.run(
        ["harness"],
        env=os.environ | {"_HARNESS_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"_HARNESS_COMPLETE=complete_{shell}" in source.stdout
    shown = subprocess.run(["harness", "--show-completion", shell], capture_output=True, text=True, check=True)
    assert shown.stdout == source.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_by_the_script_that_is_shown(program: Path) -> None:
    script = """
        eval "$(_HARNESS_COMPLETE=source_bash harness)"
        complete -p harness
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _harness_completion harness; echo "${COMPREPLY[@]}"; }
        try harness vali
        try harness che
        try harness launch --resume la
        try harness launch --progress p
        try harness checkpoint ls la
        try harness report ./no-run
    """
    shown = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [
        "complete -o default -F _harness_completion harness",
        "validate-config",
        "checkpoint check",
        "latest",
        "plain",
        "latest",
        "",
    ]


def test_brackets_that_typer_escapes_for_rich_are_printed_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """typer 0.16 and 0.20 escape them, 0.29 does not."""
    name = "get_help_record"
    plain = getattr(TyperOption, name)

    def escaped(self: TyperOption, ctx: object) -> tuple[str, str] | None:
        record = plain(self, ctx)
        return None if record is None else (record[0], re.sub(r"(?<!\\)\[", r"\\[", record[1]))

    before = run("launch", "--help").stdout
    monkeypatch.setattr(TyperOption, name, escaped)
    assert run("launch", "--help").stdout == before
    assert "[default: auto]" in before
