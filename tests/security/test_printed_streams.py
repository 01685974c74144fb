# SPDX-License-Identifier: Apache-2.0
"""The door of everything printed: every command passes it, and nothing goes around it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

import harness
from harness.cli import app
from harness.cli.command_list import COMMANDS
from harness.cli.completion import complete_run
from harness.printed_text import GuardedStream, guard_streams
from harness.runtime.user_errors import format_findings, user_error
from harness.views.screen import LiveLine, Screen
from tests.security.attempts import Attempt
from tests.security.command_runner import SPEC, Answer, run_command
from tests.security.test_printed_text import HOSTILE, assert_clean
from tests.support.sample_run import head, step, tiny, write_run

ANYWHERE = "##[stop-commands]t"
"""GitHub's runner looks for this prefix anywhere in a line, so a line number in front of a quote is no protection."""
MARKS = "a" + "\u0301" * 1000
PACKAGE = Path(harness.__file__).parent


def assert_no_commands(answer: Answer) -> None:
    assert_clean(answer)
    assert "##[" not in answer.text, answer.text


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _show(mode: str, *lines: str, capsys: pytest.CaptureFixture[str]) -> str:
    with guard_streams():
        screen = Screen(mode)  # type: ignore[arg-type]
        for line in lines:
            screen.on_output(line)
        screen.close()
    return capsys.readouterr().err


@Attempt(
    "O24",
    "`##[stop-commands]t` in a comment next to an error, and in a key",
    "in the quoted line: the runner reads it anywhere in a line",
    "`##\\u005bstop-commands]t`",
)
def test_older_commands_in_quotes() -> None:
    Path("s.yaml").write_text(SPEC + f'trian: 1 # {ANYWHERE}\n"{ANYWHERE}": 1\n')
    for arguments in (("validate-config",), ("plan",), ("render",), ("launch", "--dry-run"), ("adopt",)):
        answer = run_command(*arguments, "s.yaml")
        assert_no_commands(answer)
        assert "##\\u005bstop-commands]t" in answer.text


@Attempt("O25", "the same in JSON and SARIF", "raw in a string", "an escape of JSON: the same value")
@pytest.mark.parametrize("form", ["json", "sarif"])
def test_older_commands_in_json(form: str) -> None:
    Path("s.yaml").write_text(SPEC + f'"{ANYWHERE}": 1\n')
    answer = run_command("validate-config", "s.yaml", "--format", form)
    assert_no_commands(answer)
    assert f"`{ANYWHERE}`" in str(json.loads(answer.stdout))


@Attempt("O26", "the same in a log line", "raw in three lines of `explain --log`", "escaped")
def test_older_commands_in_logs() -> None:
    Path("job.log").write_text(f"Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA {ANYWHERE}\n")
    for form in ("text", "json"):
        assert_no_commands(run_command("explain", "--log", "job.log", "--format", form))


@Attempt("O27", "the same in file names", "raw in text and JSON", "escaped; the annotation alone is a command")
def test_older_commands_in_names() -> None:
    Path(f"{ANYWHERE}.yaml").write_text(SPEC + "trian: 1\n")
    for form in ("text", "json", "sarif"):
        assert_no_commands(run_command("validate-config", ".", "--format", form))
    assert_clean(run_command("validate-config", ".", "--format", "github"), workflow_commands=True)


@Attempt("O28", "the same in a DeepSpeed JSON, for `adopt`", "raw in the YAML", "escaped; the YAML reads back the same")
def test_older_commands_in_yaml() -> None:
    body = {"train_micro_batch_size_per_gpu": 1, ANYWHERE: [ANYWHERE, HOSTILE], "optimizer": {"type": ANYWHERE}}
    Path("ds.json").write_text(json.dumps(body))
    answer = run_command("adopt", "ds.json")
    assert_no_commands(answer)
    assert yaml.safe_load(answer.stdout)["deepspeed"][ANYWHERE] == [ANYWHERE, HOSTILE]


@Attempt(
    "O29", "1,000 combining marks on a letter", "all printed, over the lines above", "8 printed, the others escaped"
)
def test_piled_marks() -> None:
    Path("s.yaml").write_text(SPEC + f"{MARKS}: 1 # {MARKS}\n")
    for command in ("validate-config", "plan"):
        assert "\u0301" * 9 not in run_command(command, "s.yaml").assert_unharmed().text


@Attempt(
    "O30",
    "workflow commands in the output of a rank, in a CI job that launches",
    "raw: the runner obeys text of a data set",
    "escaped",
)
def test_commands_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("plain", "json", "quiet"):
        text = _show(mode, "::error::pwn", f"loss {ANYWHERE}", "a\r::add-mask::e", " ::debug::x", capsys=capsys)
        assert "##[" not in text
        assert not any(
            line.lstrip().startswith(("::e", "::a", "::d")) for line in text.replace("\r", "\n").splitlines()
        )


@Attempt("O31", "a title, U+009B and a bell in the output of a rank", "raw on the terminal", "escaped")
def test_controls_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    line = "loss \x1b]0;pwn\x07\u009b2J\u202e 3.1"
    assert "loss \\x1b]0;pwn\\x07\\x9b2J\\u202e 3.1" in _show("plain", line, capsys=capsys)


@Attempt(
    "O32", "hidden text in the output of a rank (`ESC[8m`)", "it hides all lines after it", "it ends with its line"
)
def test_colours_of_ranks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _show("plain", "\x1b[32mfine\x1b[0m", "\x1b[8mx", capsys=capsys) == "fine\nx\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    with guard_streams(lambda _: True):
        Screen("plain").on_output("\x1b[8mx")
    assert capsys.readouterr().err == "\x1b[8mx\x1b[0m\n"


@Attempt("O33", "controls in the name, lock and error of a host, in the notes of a launch", "raw", "escaped")
def test_notes_of_a_launch(capsys: pytest.CaptureFixture[str]) -> None:
    with guard_streams():
        screen = Screen("plain")
        screen.on_op_unloadable("op", HOSTILE, HOSTILE)
        screen.on_lock_kept(Path(HOSTILE), HOSTILE)
        screen.on_start_up(HOSTILE)
        screen.on_note(HOSTILE)
    assert_clean(Answer(0, "", capsys.readouterr().err, 0.0))


@Attempt("O34", "a run folder `a\\$(touch pwn)`, at TAB in zsh", "offered: zsh would evaluate it", "not offered")
def test_completion() -> None:
    for name in ("fine-1", "a\\$(touch pwn)", "a`id`", "a'b", "::error::x\n"):
        write_run(Path("runs") / name, tiny(name="tiny"), [head(tiny()), step(1)], ("completed",))
    assert complete_run("") == ["fine-1"]


@Attempt("O35", "controls in a finding that a rank prints", "raw, with injected lines", "escaped, on one line")
def test_findings_of_ranks() -> None:
    findings = user_error("DA001", f"bad {HOSTILE}", notes=(HOSTILE,), fix=HOSTILE).findings
    lines = format_findings(findings)
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


@Attempt("O36", "the same on a live line (`--progress bar`)", "U+009B, a title and commands pass", "escaped")
def test_live_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = LiveLine()
    line.show_activity("waiting for \u009b2J\x1b]0;pwn\x07")
    line.print(f"x \u009b2J\x1b]0;pwn\x07 {ANYWHERE}")
    line.print("::error::pwn")
    line.close()
    text = capsys.readouterr().err
    assert not any(bad in text for bad in ("\u009b", "\x1b]", "\x07", "##[", "::error"))
    assert "x \\x9b2J" in text


@Attempt(
    "O37", "text printed past every view: a warning, an exception, a library's log", "raw", "escaped by the stream"
)
def test_every_print(monkeypatch: pytest.MonkeyPatch) -> None:
    def print_all(_: list[str]) -> None:
        print(HOSTILE, ANYWHERE)
        print("#", "#[error]x", sep="", file=sys.stderr)
        print("  :", ":error::x", sep="")
        sys.stderr.writelines([HOSTILE, "\n", MARKS])
        sys.stderr.write(warnings.formatwarning(HOSTILE, UserWarning, HOSTILE, 1, ANYWHERE))
        logging.StreamHandler().handle(logging.makeLogRecord({"msg": HOSTILE}))
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(app, "build_app", print_all)
    monkeypatch.setattr("tempfile.tempdir", ".")  # for the log of the crash
    answer = run_command("x")
    assert answer.code == 3
    assert_no_commands(answer._replace(code=0))


@Attempt(
    "O38",
    "a value with U+009B and `\u00e9` in an error of click, on a stream of ASCII",
    "click goes around the stream and writes UTF-8",
    "ASCII, escaped; also a file name of odd bytes",
)
def test_ascii() -> None:
    name = os.fsdecode(b"a\xff\xe9\x1b.yaml")
    Path(name).write_text(SPEC + "trian: 1 # \u00e9\n", encoding="utf-8")
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONPATH": str(PACKAGE.parent)}
    for arguments in ((name, "--format", "\u009b\u00e9"), (name,)):
        done = subprocess.run(
            [sys.executable, "-m", "harness", "validate-config", *arguments],
            check=False,
            capture_output=True,
            env=environ,
            timeout=60,
        )
        text = (done.stdout + done.stderr).decode("ascii")
        assert done.returncode in (1, 2), text
        assert "\x1b" not in text
        assert "\\xe9" in text or "\\u00e9" in text


@Attempt(
    "O39",
    "every command with hostile arguments, names and formats, and code that prints around the door",
    "`##[` raw in each, and `explain` crashed on a name of 2,001 bytes",
    "five modules name what goes around: files, live displays, annotations",
)
@pytest.mark.parametrize("name", [*COMMANDS, "check"])
def test_every_command(name: str) -> None:
    for arguments in ((HOSTILE,), (ANYWHERE, MARKS), ("--format", ANYWHERE), (f"--{ANYWHERE}",)):
        if name not in ("doctor", "schema") or arguments[0].startswith("--"):
            answer = run_command(name, *arguments)
            assert answer.code in (1, 2, 4), answer.text
            assert_no_commands(answer)


def test_nothing_goes_around_the_door() -> None:
    around = set()
    for module in PACKAGE.rglob("*.py"):
        name = module.relative_to(PACKAGE).as_posix()
        if name.startswith(("workers/", "runtime/")):  # processes of their own, whose output the command reads
            continue
        text = module.read_text(encoding="utf-8")
        assert not re.search(
            r"os\.write\([12],|sys\.__std(out|err)__|Console\((?!file=unguarded)|std(out|err)\.buffer", text
        ), name
        if "unguarded(" in text:
            around.add(name)
    assert around - {"printed_text.py"} == {
        "cli/checkpoint_verification.py",
        "cli/output_format.py",
        "cli/validate_config.py",
        "file_io.py",
        "views/screen.py",
    }


def test_files_are_exact() -> None:
    Path("s.yaml").write_text(SPEC + f'ignore: {{GA001: "{ANYWHERE}"}}\ndeepspeed: {{"x": "{ANYWHERE}"}}\n')
    printed, written = run_command("render", "s.yaml"), run_command("render", "s.yaml", "-o", "/dev/stdout")
    if printed.code == 0:
        assert json.loads(printed.stdout) == json.loads(written.stdout)
        assert ANYWHERE not in printed.stdout


def test_guard() -> None:
    inner = io.StringIO()
    stream = GuardedStream(inner, colour=True)
    assert stream.write("\x1b[1;31mred\x1b[0m\tcaf\u00e9 \x1b[2J\x7f\n") == 36
    assert inner.getvalue() == "\x1b[1;31mred\x1b[0m\tcaf\u00e9 \\u001b[2J\\u007f\n"
    for text in ("#", "#", "[error]\n", " :", ":", "error::x\n", "1::error::y\n", "::1 is a host\n"):
        stream.write(text)
    assert inner.getvalue().splitlines()[1:] == ["##\\u005berror]", " ::\\u0065rror::x", "1::error::y", "::1 is a host"]
    assert not hasattr(stream, "buffer")
