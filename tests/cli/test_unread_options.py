# SPDX-License-Identifier: Apache-2.0
"""No option of any command is ignored. The commands and their options are typer's own; `harness plan` and the commands
with its options have a test of their own, test_plan_options.py. Seconds.
"""

from __future__ import annotations

import importlib
import inspect
import shlex
import shutil
import sys
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from harness.checkpoints.resume_compatibility import flatten
from harness.cli import doctor as doctor_module
from harness.cli.app import build_app, main
from harness.cli.checkpoint import Action
from harness.cli.command_list import COMMANDS
from harness.cli.launch_option_checks import check_allowed_changes
from harness.errors import ExitCode, UserError
from harness.findings import Finding
from harness.spec.run_spec import RunSpec
from harness.views.report import live_server
from tests.cli.test_launch import SPEC
from tests.support.sample_checkpoints import make

CHECKPOINTS = {
    "diff": "runs/a/checkpoints/step-00000002 runs/a/checkpoints/step-00000004",
    "rm": "runs/a/checkpoints/step-00000002",
    "upload": "runs/a s3://no-bucket/a",
    "download": "s3://no-bucket/a folder",
    "import": "runs/a runs/b",
    "convert": "runs/a folder",
}
# a command -> the calls that its options are added to: none of them trains, measures or contacts a host
CALLS = {
    "validate-config": ("odd.json",),
    "upgrade-check": ("odd.json --from 0.19.2 --to 0.19.8",),
    "adopt": ("odd.json",),
    "explain": ("PP001", "--log job.log", "--list"),
    "demo": (),
    "schema": ("",),
    "render": ("small.yaml", "small.yaml --write", "small.yaml --check", "small.yaml --output x.json"),
    "rehearse": ("small.yaml --dry-run",),
    "tune": ("small.yaml --dry-run",),
    "doctor": ("", "--measure", "--tune-nvme ."),
    "preflight": ("small.yaml --hosts a:2",),
    "data": ("small.yaml",),
    "launch": ("small.yaml --dry-run",),
    "runs": ("",),
    "report": ("runs/a", "runs/a --output x.html"),
    "checkpoint": tuple(f"{action} {CHECKPOINTS.get(action, 'runs/a')}" for action in Action),
    "export": ("runs/a out",),
}
# a wrong word for each option that takes text; None where every word is right
WRONG_WORDS = {
    **dict.fromkeys(("hostfile", "log", "disk", "tune_nvme", "spec", "script"), "no-such-file"),
    **dict.fromkeys(("deepspeed_version", "from_", "to", "from_release"), "newest"),
    **dict.fromkeys(("include", "exclude"), "no-host"),
    **dict.fromkeys(("select", "ignore"), "XX999"),
    "overrides": "no-equals-sign",
    "hosts": "a:many",
    **dict.fromkeys(("output", "accelerate", "html"), "no-folder/no-file"),
    **dict.fromkeys(("tags", "note"), None),  # any text
    "notify": "ftp://host/path",
    "out": "small.yaml",
    "max_shard_size": "many",
    "resume": "no-run",
    "allow_change": "train.max_step",
    "profile": "10-12",
    "folder": None,
    "exec_": None,
    "model": "no-such-folder",
    # right words, of another mode
    "stdin_filename": "x.yaml",
    "sbatch": "--nodes=2",
    "run_id": "job",
    "master_addr": "node-0",
    "image": "registry/image:1",
    "namespace": "training",
    "pvc": "claim:/mnt/runs",
    "workdir": "/mnt",
    "env_from": "secret",
    "nvme_class": "fast",
    "pod_patch": "pods.yaml",
    "container": "registry#image:1",
    "container_mount": "/data",
    "push": "no repository",
}
# what these calls cannot show before they train, read the data or contact hosts, as any call may be tried with
# `--dry-run`; and what depends on this machine, or on the only checkpoint that is left
SHOWN_LATER = {
    "validate-config": {"here"},
    "upgrade-check": {"strict"},  # the change is an error
    "explain --log": {"follow"},  # the job has ended
    "checkpoint rm": {"force"},
    "checkpoint import": {"drop_optimizer_states", "partial"},  # that the folder is of this program is said first
    "launch": {"no_preflight", "tee", "quiet", "allow_local_code"},
    "preflight": {"allreduce", "allow_local_code", "slurm"},
    "tune": {"allow_local_code"},
    "rehearse": {"allow_local_code", "keep"},
    "data": {"allow_local_code"},
    "export": {"best", "verify", "allow_local_code"},
}
# options that mean nothing beside another -> the option that the refusal names
MEANINGLESS = {
    "adopt odd.json --world-size 2": "--world-size",
    "explain PP001 --format json": "--format",
    "explain --all --table": "--table",
    "render small.yaml --write --output x.json": "--output x.json",
    "tune small.yaml --dry-run --overwrite": "--overwrite",
    "doctor --seconds 5": "--seconds",
    "doctor --measure --seconds 5": "--seconds",
    "doctor --disk .": "--disk",
    "doctor --tune-nvme . --disk .": "--disk",
    "report runs/a --port 0": "--port",
    "report runs/a --watch --output x.html": "--output",
    "checkpoint rm runs/a --yes --format json": "--format",
    "checkpoint download s3://a/b x --format json": "--format",
    "launch small.yaml --dry-run --quiet --progress bar": "--quiet",
    "launch small.yaml --dry-run --progress quiet --tee": "--tee",
    "launch small.yaml --dry-run --node-rank 0": "--node-rank",
    "launch small.yaml --dry-run --profile ranks=0": "ranks",
    "launch small.yaml --dry-run --profile steps=1,steps=2": "steps",
    "launch small.yaml --dry-run --allow-change train": "--allow-change",
    "launch small.yaml --slurm --num-nodes 0": "--num-nodes",
    "launch small.yaml --slurm --hostfile hosts": "--hostfile",
    "launch small.yaml --slurm --hosts a:2": "--hosts",
    "launch small.yaml --slurm --no-ssh --run-id job": "--no-ssh",
    "launch small.yaml --slurm --node-rank 0": "--node-rank",
    "launch small.yaml --kubernetes --sbatch=--nodes=2": "--sbatch",
    "launch small.yaml --kubernetes --no-preflight": "--no-preflight",
    "launch small.yaml --kubernetes --dry-run --output x.yaml": "--dry-run",
    "launch small.yaml --kubernetes --node-rank 0": "--node-rank",
}


class Option(NamedTuple):
    """An option of a command: its parameter, its name for users, typer's own object, and the type of its value."""

    param: str
    name: str
    option: Any
    type: Any


class Answer(NamedTuple):
    code: object
    out: str
    err: str
    files: frozenset[str]


def _options(command: str) -> list[Option]:
    function = COMMANDS[command].function
    parameters = inspect.signature(
        getattr(importlib.import_module(f"harness.cli.{function}"), function), eval_str=True
    ).parameters
    shown = get_command(build_app([command])).commands[command].params  # type: ignore[attr-defined]
    return [
        Option(option.name, option.opts[0], option, _value_type(parameters[option.name].annotation))
        for option in shown
        if option.param_type_name == "option" and option.name in parameters
    ]


def _value_type(annotation: Any) -> Any:
    """The class of one value, of `Annotated`, of `X | None` and of `list[X]`."""
    kind = typing.get_origin(annotation)
    if kind in (typing.Annotated, types.UnionType, typing.Union, list):
        return _value_type(typing.get_args(annotation)[0])
    return annotation


def _wrong_values(option: Option) -> list[str]:
    if issubclass(option.type, Enum):
        return ["unknown", ""]
    if option.type in (int, float):
        bounds = option.option if hasattr(option.option, "min") else option.option.type  # typer 0.19: click's own type
        least = bounds.min
        numbers = ["-1", "0"] if least is None else [str(least - 1)]
        return ["many", "", *numbers, *([str(bounds.max + 1)] if bounds.max is not None else [])]
    assert option.type is str, option
    word = WRONG_WORDS[option.param]
    return ["", " ", *([word] if word is not None else [])]


def write_files(tmp_path: Path) -> None:
    """A spec, a JSON with a warning that can be fixed, a log, and a run with two checkpoints."""
    (tmp_path / "small.yaml").write_text(SPEC, encoding="utf-8")
    (tmp_path / "small.json").write_text("{}", encoding="utf-8")
    old_name = '"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": true}'
    odd = f'{{"train_batch_size": 8, {old_name}}}'
    (tmp_path / "odd.json").write_text(odd, encoding="utf-8")
    (tmp_path / "hosts").write_text("a slots=2\n", encoding="utf-8")
    (tmp_path / "job.log").write_text(
        "node7: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB (/home/alice/a.py, 10.0.0.7)\n",
        encoding="utf-8",
    )
    run = tmp_path / "runs" / "a"
    shutil.rmtree(run, ignore_errors=True)
    for step in (2, 4):
        make(run / "checkpoints", step)
    (run / "metrics.jsonl").write_text('{"type": "step", "step": 1, "loss": 2.0}\n', encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        monkeypatch.delenv(name, raising=False)

    def say_started(*_: object) -> None:
        raise UserError([Finding("SP011", "error", "it was started")], ExitCode.PREFLIGHT)

    monkeypatch.setattr(doctor_module, "run_checks", lambda: ())
    monkeypatch.setattr(doctor_module.benchmark_runner, "benchmark_host", say_started)
    monkeypatch.setattr(doctor_module.aio_tuning, "tune_aio", say_started)
    monkeypatch.setattr(live_server, "serve_reports", say_started)
    return tmp_path


def _call(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    monkeypatch.setattr(sys, "argv", ["harness", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return Answer(ended.value.code, out, err, frozenset(str(path) for path in Path().iterdir()))


def _problem(answer: Answer, *names: str) -> str:
    """What is wrong with a refusal; empty for one error that names an option or its value."""
    if answer.code not in (ExitCode.FINDINGS, ExitCode.USAGE, ExitCode.PREFLIGHT):
        return f"exit code {answer.code}"
    if "Traceback" in answer.err:
        return "a traceback"
    if (count := sum(line.startswith(("error", "Error")) for line in (answer.out + answer.err).splitlines())) != 1:
        return f"{count} errors"
    is_named = any(name.strip() and name in answer.out + answer.err for name in names)
    return "" if is_named else f"names none of {names}: {answer.err}"


@pytest.mark.parametrize("command", CALLS)
def test_a_wrong_value_is_refused(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {}
    for base in CALLS[command]:
        for option in _options(command):
            if option.option.is_flag or option.name in base:
                continue
            for value in _wrong_values(option):
                words = [command, *shlex.split(base), f"{option.name}={value}"]
                if problem := _problem(_call(words, monkeypatch, capsys), option.name, value, value.rpartition(":")[2]):
                    bad[shlex.join(words)] = problem
    assert not bad


@pytest.mark.parametrize("command", [name for name in CALLS if name != "schema"])
def test_an_empty_argument_is_refused(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variable of the shell that is not set would be the current folder."""
    words = [command, "ls", ""] if command == "checkpoint" else [command, ""]
    assert not _problem(_call(words, monkeypatch, capsys), "is empty", "unexpected extra argument")


@pytest.mark.parametrize("command", CALLS)
def test_a_flag_changes_the_answer_or_is_refused(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {}
    for base in CALLS[command]:
        words = [command, *shlex.split(base)]
        later = {name for start, names in SHOWN_LATER.items() if shlex.join(words).startswith(start) for name in names}
        for option in _options(command):
            if not option.option.is_flag or option.param in later or option.name in base:
                continue
            write_files(folder)
            answer = _call([*words, option.name], monkeypatch, capsys)
            if answer.code == ExitCode.USAGE and not _problem(answer, option.name):
                continue
            write_files(folder)
            if answer == _call(words, monkeypatch, capsys):
                bad[shlex.join([*words, option.name])] = answer
    assert not bad


@pytest.mark.parametrize("line", MEANINGLESS)
def test_an_option_without_a_meaning_is_refused(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = _call(shlex.split(line), monkeypatch, capsys)
    assert not _problem(answer, MEANINGLESS[line])
    assert answer.code == ExitCode.USAGE


@pytest.mark.parametrize("words", ["validate-config small.yaml", "upgrade-check small.yaml --from 0.19.2"])
def test_a_consumer_of_run_specs_has_no_effect_and_is_no_error(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pre-commit hook gives the option with whatever files have changed."""
    answer = _call([*words.split(), "--consumer", "hf"], monkeypatch, capsys)
    assert answer.code == ExitCode.OK
    assert "`--consumer hf` has no effect" in answer.out
    mixed = _call([*words.split(), "odd.json", "--consumer", "hf"], monkeypatch, capsys)
    assert "`--consumer hf` has no effect" not in mixed.out


def test_every_command_is_asked() -> None:
    assert {*CALLS, "plan", "size", "simulate", "calibrate", "degrees"} == set(COMMANDS)


def test_every_compared_key_can_be_allowed_to_change() -> None:
    spec = RunSpec.model_validate({"model": {"config": {"model_type": "llama"}}, "launch": {"env": {"A": "1"}}})
    check_allowed_changes([*flatten(spec.model_dump(mode="json")), "zero", "model.tokenizer"], "auto")
