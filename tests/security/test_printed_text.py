# SPDX-License-Identifier: Apache-2.0
"""Names, keys, values and lines of somebody else's in what every command prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from harness.views.findings_text import _mask_secrets
from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import SECONDS, SPEC, Answer, run_command
from tests.support.sample_checkpoints import make as make_checkpoint
from tests.support.sample_run import head, step, tiny, write_run

HOSTILE = "x\x1b[31m\x1b]0;pwn\x07\u009b2J\r\u202e\u2028\u2066\x7f\n::error::pwn\n##[error]pwn\n::stop-commands::t"
"""Colours, a window title, C1, a carriage return, bidirectional controls, and commands of GitHub's runner."""
QUOTED = json.dumps(HOSTILE, ensure_ascii=True)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_COMMAND = re.compile(r"^\s*(::[\w-]+|##\[)", re.MULTILINE)


def assert_clean(answer: Answer, *, workflow_commands: bool = False) -> None:
    """Nothing steers a terminal; nothing is a command for GitHub's runner but what is meant so."""
    answer.assert_unharmed()
    assert not _CONTROLS.search(answer.text), ascii(answer.text)
    commands = [match[0] for match in _COMMAND.finditer(answer.text)]
    if workflow_commands:
        assert set(commands) <= {"::error", "::warning", "::notice"}
        lines = [line for line in answer.stdout.splitlines() if line.startswith("::")]
        assert all(re.match(r"::(error|warning|notice) file=[^:]*,title=\w+::", line) for line in lines), lines
    else:
        assert commands == [], answer.text


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SPECS = [
    attempt_param(
        Attempt(
            "O1",
            "an unknown key with a line break and `::stop-commands::`",
            "line 18 of stdout is a workflow command",
            "escaped",
        ),
        SPEC + f"{QUOTED}: 1\n",
    ),
    attempt_param(
        Attempt("O2", "a value with ESC and OSC where a number belongs", "ESC on the terminal", "escaped"),
        SPEC.replace("max_steps: 3", f"max_steps: {QUOTED}"),
    ),
    attempt_param(
        Attempt("O3", "a name in `launch.env` with a line break", "injected lines", "escaped"),
        SPEC + f"launch: {{env: {{{QUOTED}: a}}}}\n",
    ),
    attempt_param(
        Attempt("O4", "a value in `launch.env` with a line break", "escaped", "escaped"),
        SPEC + f"launch: {{env: {{X: {QUOTED}}}}}\n",
    ),
    attempt_param(
        Attempt("O5", "a model name with ESC", "escaped", "escaped"),
        SPEC.replace(SPEC.splitlines()[0], f"model: {{name_or_path: {QUOTED}}}"),
    ),
    attempt_param(
        Attempt("O6", "a data path with ESC", "escaped", "escaped"), SPEC.replace("builtin:python-docs", QUOTED)
    ),
    attempt_param(
        Attempt("O7", "the name of a hostfile with ESC", "escaped", "escaped"),
        SPEC + f"launch: {{hostfile: {QUOTED}}}\n",
    ),
    attempt_param(Attempt("O8", "a run name with ESC", "escaped", "escaped"), f"name: {QUOTED}\n" + SPEC),
    attempt_param(
        Attempt("O9", "keys of `deepspeed` with ESC", "escaped", "escaped"),
        SPEC + f"deepspeed: {{{QUOTED}: {QUOTED}, zero_optimization: {{{QUOTED}: 1}}}}\n",
    ),
    attempt_param(
        Attempt("O10", "an id in `ignore` with a line break", "raw in `plan` and `launch --dry-run`", "escaped"),
        SPEC + f"ignore: {{{QUOTED}: {QUOTED}}}\n",
    ),
    attempt_param(
        Attempt("O11", "an output folder and a plug-in with ESC", "escaped", "escaped"),
        SPEC + f"launch: {{output_dir: {QUOTED}}}\nplugins: {{file: {QUOTED}}}\n",
    ),
    attempt_param(
        Attempt("O12", "ESC in a comment, raw, next to an error", "ESC on the terminal", "SP001: not a text file"),
        SPEC + "trian: 1 # \x1b]0;pwn\x07\n",
    ),
    attempt_param(
        Attempt("O13", "bidirectional controls in a comment, next to an error", "shown in another order", "escaped"),
        SPEC + "trian: 1 # \u202e\u2066 fine\n",
    ),
    attempt_param(
        Attempt("O14", "a syntax error in a line with controls", "raw", "escaped"),
        SPEC + '"a\u009b2J": [\u202e\n::error::x\n',
    ),
]


@pytest.mark.parametrize("spec", SPECS)
def test_specs(spec: str) -> None:
    Path("s.yaml").write_text(spec)
    for command in ("validate-config", "plan", "render", "adopt"):
        assert_clean(run_command(command, "s.yaml"))
    assert_clean(run_command("upgrade-check", "s.yaml", "--from", "0.16.9", "--to", "0.19.8"))
    assert_clean(run_command("launch", "--dry-run", "s.yaml"))
    assert_clean(run_command("validate-config", "s.yaml", "--format", "github"), workflow_commands=True)
    for form in ("json", "sarif"):
        answer = run_command("validate-config", "s.yaml", "--format", form)
        assert_clean(answer)
        json.loads(answer.stdout)


@Attempt("O15", "a DeepSpeed JSON with such keys and values", "raw in `adopt`", "escaped; the adopted file reads back")
def test_deepspeed_json() -> None:
    body = {
        "train_micro_batch_size_per_gpu": 1,
        HOSTILE: HOSTILE,
        "optimizer": {"type": HOSTILE, "params": {HOSTILE: 1}},
    }
    Path("ds.json").write_text(json.dumps(body))
    for command in ("validate-config", "adopt"):
        assert_clean(run_command(command, "ds.json"))


@Attempt("O16", "a file NAME with a line break and ESC, found in a folder", "raw in text", "escaped")
def test_file_names() -> None:
    Path(f"a{HOSTILE.replace('/', '')}.yaml").write_text(SPEC + "trian: 1\n")
    assert_clean(run_command("validate-config", "."))
    assert_clean(run_command("validate-config", ".", "--format", "github"), workflow_commands=True)
    for form in ("json", "sarif"):
        assert_clean(run_command("validate-config", ".", "--format", form))


@Attempt(
    "O17",
    "a file name of bytes that are no UTF-8",
    "SARIF: a crash, no result for any file",
    "escaped, and no crash in any format",
)
def test_names_of_odd_bytes() -> None:
    Path(os.fsdecode(b"a\xff\x1b[2J.yaml")).write_text(SPEC + "trian: 1\n")
    for form in ("text", "json", "sarif", "github"):
        answer = run_command("validate-config", ".", "--format", form).assert_unharmed()
        assert "trian" in answer.text


@Attempt("O18", "options with ESC and line breaks, as a CI job may pass names", "bidirectional controls raw", "escaped")
@pytest.mark.parametrize(
    "arguments",
    [
        ("validate-config", HOSTILE),
        ("validate-config", f"--{HOSTILE}"),
        ("validate-config", "s.yaml", "--select", HOSTILE),
        ("validate-config", "s.yaml", "--set", f"{HOSTILE}=1"),
        ("validate-config", "s.yaml", "--deepspeed-version", HOSTILE),
        ("validate-config", "s.yaml", "--format", HOSTILE),
        ("plan", "s.yaml", "--gpu", HOSTILE),
        ("plan", HOSTILE),
        ("explain", HOSTILE),
        ("explain", "--log", HOSTILE),
        ("report", HOSTILE),
        ("runs", HOSTILE),
        ("checkpoint", HOSTILE, "x"),
        ("checkpoint", "ls", HOSTILE),
        ("checkpoint", "rm", HOSTILE, "--yes"),
        ("export", HOSTILE, HOSTILE),
        ("adopt", HOSTILE),
        ("render", HOSTILE),
        ("upgrade-check", HOSTILE, "--to", HOSTILE),
        ("launch", "--dry-run", HOSTILE),
        (HOSTILE,),
    ],
)  # fmt: skip
def test_arguments(arguments: tuple[str, ...]) -> None:
    Path("s.yaml").write_text(SPEC)
    assert_clean(run_command(*arguments))


@Attempt("O19", "host names and lines of a hostfile", "escaped", "escaped")
def test_hostfile() -> None:
    Path("s.yaml").write_text(SPEC + "launch: {hostfile: hosts}\n")
    Path("hosts").write_text("good slots=1\n\x1b[31mbad\u009b slots=1\n::error::x slots=1\na slots=\u202e2\n")
    for form in ("text", "json"):
        assert_clean(run_command("validate-config", "s.yaml", "--format", form))
    assert_clean(run_command("validate-config", "s.yaml", "--format", "github"), workflow_commands=True)


@Attempt("O20", "log lines with ESC, U+009B and `::error::`", "U+009B passes", "escaped")
def test_logs() -> None:
    lines = [
        f"[rank0]: RuntimeError: {HOSTILE.splitlines()[0]}",
        "::error::pwn",
        f"{HOSTILE} FileNotFoundError: [Errno 2] \u009b2J",
    ]
    Path("job.log").write_text("Traceback (most recent call last):\n" + "\n".join(lines * 3) + "\n")
    for more in ((), ("--format", "json"), ("--redact",)):
        assert_clean(run_command("explain", "--log", "job.log", *more))


@Attempt("O21", "strings of a manifest", "50 lines with ESC, 49 workflow commands", "escaped")
def test_manifests() -> None:
    versions = {"deepspeed": HOSTILE, HOSTILE: HOSTILE}
    spec = {"name": HOSTILE, "model": {"name_or_path": HOSTILE}, HOSTILE: HOSTILE}
    make_checkpoint(
        Path("run/checkpoints"), 3, versions=versions, spec=spec, dtype=HOSTILE, layout=HOSTILE, saved_at=HOSTILE
    )
    make_checkpoint(Path("run/checkpoints"), 5)
    for action in ("ls", "verify", "show", "diff"):
        for form in ("text", "json"):
            assert_clean(
                run_command(
                    "checkpoint",
                    action,
                    "run",
                    *(["run/checkpoints/step-00000003"] if action == "diff" else []),
                    "--format",
                    form,
                )
            )


@Attempt("O22", "`latest` of a checkpoint folder", "raw", "escaped")
def test_latest() -> None:
    make_checkpoint(Path("run/checkpoints"), 3)
    Path("run/checkpoints/latest").write_text(HOSTILE)
    for action in ("ls", "verify", "show"):
        assert_clean(run_command("checkpoint", action, "run"))


@Attempt("O23", "every text of a run directory, for `runs` and `explain --log`", "`?` for controls", "escaped")
def test_run_directories() -> None:
    folder = write_run(
        Path("runs/a"),
        tiny(name="tiny"),
        [head(tiny(), name=HOSTILE), *(step(n) for n in range(1, 5))],
        ("failed", "running"),
    )
    verdict = {
        "format_version": 1,
        "state": "failed",
        "exit_code": 1,
        "reason": HOSTILE,
        "rank": 0,
        "host": HOSTILE,
        "step": 3,
    }
    (folder / "verdict.json").write_text(
        json.dumps(verdict | {"signal": HOSTILE, "notes": [HOSTILE], "time": 1.0, "cause": HOSTILE, "line": HOSTILE})
    )
    for file in (folder / "status").iterdir():
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"error": HOSTILE, "host": HOSTILE, "state": "failed"})
        )
    (folder / "launch.json").write_text(
        json.dumps({"name": HOSTILE, "hosts": [{"name": HOSTILE, "ranks": [0]}], "argv": [HOSTILE]})
    )
    shutil.copytree(folder, folder.parent / f"b{HOSTILE.replace('/', '')}")
    for arguments in (
        ("runs",),
        ("runs", "--format", "json"),
        ("explain", "--log", "runs/a"),
        ("report", "runs/a", "-o", "r.html"),
    ):
        assert_clean(run_command(*arguments))


@Attempt(
    "O55",
    "quoted lines of 200,000 letters, colons, quotes and blanks, searched for secrets",
    "more than 14 minutes in a pattern",
    "linear time",
)
@pytest.mark.parametrize("piece", ["a", "a ", "a:", 'a:"', "a='", " ", '"', "a=", "_:{", "A_TOKEN", "\\"])
def test_long_lines(piece: str) -> None:
    started = time.process_time()
    _mask_secrets(piece * (200_000 // len(piece)))
    _mask_secrets("{" + piece * (200_000 // len(piece)))
    _mask_secrets("a=" + piece * (200_000 // len(piece)))
    assert time.process_time() - started < SECONDS
