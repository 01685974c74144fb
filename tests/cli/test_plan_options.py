# SPDX-License-Identifier: Apache-2.0
"""No option of `harness plan` is ignored: with each question, each option changes the answer or is refused by name."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from harness.cli import plan as plan_module
from harness.cli.app import build_app, main
from harness.errors import ExitCode
from tests.cli.test_plan_wrong_input import SPEC

RUN = "--model llama-3.2-1b --gpus 8 --gpu H100-80GB"
# a question -> its words; searches are asked in the night only, but for one option
QUESTIONS = {
    "a spec": "small.yaml",
    "a model": f"{RUN} --zero-stage 3 --format json",
    "a search": f"{RUN} --host-memory 1TB --format json",
    "--params": "--params 7e9",
    "--table": "--table",
    "--non-state-peak": "--params 7e9 --gpu H100-80GB --non-state-peak 22GB",
    "degrees": f"{RUN} --tensor 2",
    "--calibrate": "--calibrate no-run",
    "--min-gpus": "--model llama-3.2-1b --gpu H100-80GB --min-gpus",
    "--longest": "--model llama-3.2-1b --gpus 8 --gpu H100-80GB --longest",
    "--cheapest": "--model llama-3.2-1b --cheapest --gpus 8",
    "--largest-model": "--gpus 8 --gpu A100-40GB --host-memory 1TB --largest-model",
    "--simulate": "small.yaml --simulate",
}
SLOW = ("a search", "--min-gpus", "--longest", "--cheapest", "--largest-model", "--simulate")
# an option -> its words. None of them is what a question has anyway
WORDS = {
    "spec": "small.yaml",
    "hostfile": "--hostfile hosts",
    "world_size": "--world-size 16",
    "overrides": "--set train.gradient_checkpointing=false --set optimizer.type=lion",
    "here": "--here",
    "allow_local_code": "--allow-local-code",
    "format": "--format json",
    "model": "--model qwen2.5-0.5b",
    "lora": "--lora",
    "qlora": "--qlora",
    "params": "--params 1e9",
    "gpus": "--gpus 16",
    "gpu": "--gpu A100-80GB",
    "gpus_per_node": "--gpus-per-node 4",
    "host_memory": "--host-memory 200GB",
    "nvme": "--nvme 8x3.5TB",
    "zero_stage": "--zero-stage 2",
    "max_length": "--max-length 1024",
    "batch_tokens": "--batch-tokens 65536",
    "tokens": "--tokens 1e9",
    "epochs": "--epochs 3",
    "prices": "--price 2",
    "deadline": "--deadline 3h",
    "measured": "--measured 12e3",
    "search": "--search",
    "min_gpus": "--min-gpus",
    "cheapest": "--cheapest",
    "longest": "--longest",
    "largest_model": "--largest-model",
    "price_file": "--price-file prices.yaml",
    "write": "--write found.yaml",
    "plot": "--plot memory.svg",
    "html": "--html plan.html",
    "calibrate": "--calibrate no-run",
    "calibration": "--calibration no-file.json",
    "long": "--long",
    "trainer": "--as trainer",
    "simulate": "--simulate",
    "rank": "--rank 99",
    "layers": "--layers 1",
    "races": "--races",
    "trace": "--trace step.json",
    "tensor": "--tensor 4",
    "pipeline": "--pipeline 2",
    "context": "--context 2",
    "expert": "--expert 2",
    "virtual_stages": "--virtual-stages 2",
    "schedule": "--schedule gpipe",
    "micro_batch": "--micro-batch 2",
    "precision": "--precision fp32",
    "checkpointing": "--checkpointing full",
    "states": "--states int8",
    "sequence_parallel": "--no-sequence-parallel",
    "timeline": "--timeline schedule.svg",
    "scaling": "--scaling 16,32",
    "table": "--table",
    "non_state_peak": "--non-state-peak 30GB",
    "network": "--network 1GB/s",
    "gradients": "--gradients fp32",
}
# what an option needs beside it, to be about something
BESIDE = {
    "prices": "--tokens 2e9",
    "deadline": "--tokens 2e9",
    "epochs": "--tokens 2e9",
    "virtual_stages": "--pipeline 2",
    "schedule": "--pipeline 2",
    "timeline": "--pipeline 2",
    "network": "--pipeline 1 --gpus-per-node 2",
}
# other words, where those above are what the question has, or more than it can have
OTHER_WORDS = {
    ("--cheapest", "prices"): "--price H100-80GB=0.1",
    ("--cheapest", "gpus"): "--gpus 4",
    ("--table", "precision"): "--precision fp32",
    ("degrees", "gradients"): "--gradients bf16",
    ("a spec", "network"): "--network 1GB/s --hostfile hosts",
    ("a spec", "write"): "--search --write found.yaml",
    ("a model", "format"): "--format text",
    ("a search", "format"): "--format text",
    ("a model", "long"): "--format text --long",
    ("a search", "long"): "--format text --long",
}


class Answer(NamedTuple):
    code: object
    out: str
    err: str
    files: frozenset[str]


WITHOUT: dict[str, Answer] = {}
"""The words of a question -> its answer, which many options are compared with."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.yaml").write_text(SPEC.replace("Llama-3.1-8B", "Llama-3.2-1B"), encoding="utf-8")
    (tmp_path / "hosts").write_text("a slots=8\nb slots=8\n", encoding="utf-8")
    prices = "date: 2026-11-01\nprices: {H100-80GB: 0.5}\n"
    (tmp_path / "prices.yaml").write_text(prices, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def _ask(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Answer:
    monkeypatch.setattr(sys, "argv", ["harness", "plan", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = (text.replace(str(folder), "folder") for text in capsys.readouterr())
    return Answer(ended.value.code, out, err, frozenset(file.name for file in folder.iterdir()))


def _with_option(question: str, name: str) -> tuple[str, str]:
    """The words of the question without the option and with it."""
    words = OTHER_WORDS.get((question, name), WORDS[name])
    base = shlex.split(QUESTIONS[question])
    beside = shlex.split(BESIDE.get(name, ""))
    if beside and question in (
        ("degrees",) if "--pipeline" in beside else ("degrees", "a spec", "a model", "a search")
    ):
        base += beside if beside[0] not in base else []
    option, *value = shlex.split(words)
    if option in base:  # the option with another value
        index = base.index(option)
        return shlex.join(base), shlex.join([*base[:index], option, *value, *base[index + 1 + len(value) :]])
    return shlex.join(base), shlex.join([*base, option, *value])


def _is_slow(question: str, name: str) -> bool:
    """Does it take a search, or more?"""
    return question in SLOW or name in (
        "search",
        "cheapest",
        "longest",
        "largest_model",
        "min_gpus",
        "simulate",
        "write",
        "html",
    )


def _cases() -> list[tuple[str, str]]:
    """Each option that the question has not as a flag, and that does not ask for a run which is not there."""
    cases = []
    for question, words in QUESTIONS.items():
        for name, option in WORDS.items():
            is_there = option in words or (question == "--calibrate" and name in ("format", "calibration"))
            if not is_there and (not _is_slow(question, name) or name == "layers" or os.environ.get("HARNESS_NIGHTLY")):
                cases.append((question, name))
    return cases


def test_every_option_is_asked() -> None:
    others = {"offline"}  # tests/hostinfo/test_hub_config.py, with a server
    assert others | set(WORDS) == set(plan_module.plan.__signature__.parameters)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("question", "name"), _cases())
def test_an_option_changes_the_answer_or_is_refused(
    question: str,
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without, with_it = _with_option(question, name)
    before = frozenset(folder.iterdir())
    answer = _ask(with_it, monkeypatch, capsys, folder)
    option = next(word for word in with_it.split() if word in WORDS[name].split())
    if answer.code == ExitCode.USAGE and (f"`{option}" in answer.err or (name == "spec" and "a spec" in answer.err)):
        assert (answer.out, answer.err.count("error")) == ("", 1)
        return
    if without not in WITHOUT:
        for written in frozenset(folder.iterdir()) - before:
            written.unlink() if written.is_file() else shutil.rmtree(written)
        WITHOUT[without] = _ask(without, monkeypatch, capsys, folder)
    assert answer != WITHOUT[without]


@pytest.mark.parametrize(
    ("words", "successor"),
    [
        ("--params 7e9 --gpus 8", "size --params 7e9 --gpus 8"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100-80GB --zero-stage 3", None),
        (
            "--model llama-3.1-8b --gpus 8 --gpu H100-80GB --tensor 1",
            "degrees --model llama-3.1-8b --gpus 8 --gpu H100-80GB",
        ),
    ],
)
def test_a_question_of_another_command_is_answered_with_advice(
    words: str,
    successor: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    successor = successor or f"size {words}"
    by_plan = _ask(words, monkeypatch, capsys, tmp_path)
    monkeypatch.setattr(sys, "argv", ["harness", *shlex.split(successor)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (by_plan.code, by_plan.out)
    assert (
        by_plan.err
        == f"`harness {successor.split()[0]}` answers this; `harness plan` does so until release 1.0.\n{err}"
    )


def test_the_commands_share_all_options() -> None:
    """An option that `harness plan` hides is one of a command that shows it."""
    commands = {name: _params(name) for name in ("plan", "size", "simulate", "calibrate", "degrees")}
    shown = {option.name for params in commands.values() for option in params if not getattr(option, "hidden", False)}
    assert {option.name for option in commands["plan"]} - {"simulate", "help"} <= shown
    for name, params in commands.items():
        assert sum(not getattr(option, "hidden", False) for option in params) <= 36, name


def _params(command: str) -> list[Any]:
    application: Any = get_command(build_app([command]))
    return list(application.commands[command].params)
