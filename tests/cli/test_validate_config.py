# SPDX-License-Identifier: Apache-2.0
"""The contract that other people script against: files in, findings out, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.cli.command_list import COMMANDS
from harness.gates.registry import all_gates

ROOT = Path(__file__).parents[2]

SPEC = """\
model: {name_or_path: x}
data: {train: y}
train: {max_steps: 1, per_device_train_batch_size: 2}
zero: {stage: 1}
"""


def run(*arguments, stdin=None):
    return CliRunner().invoke(build_app(list(arguments)), list(arguments), input=stdin)


def test_good_news_is_one_line(write):
    result = run("validate-config", write("a.yaml", SPEC), "--world-size", "2", "--deepspeed-version", "0.19.8")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"OK\. \d+ gates checked against DeepSpeed 0\.19\.8 \(requested\), \d+ skipped \(`-v`\)\n",
        result.stdout,
    )


@pytest.mark.parametrize(
    ("name", "content", "code", "place"),
    [
        (
            "first-gate.yaml",
            SPEC.replace("stage: 1", "stage: 2") + "parallel: {pipeline_parallel_size: 2}\n",
            1,
            ":4:15",
        ),
        (
            "autotp.yaml",
            SPEC + "parallel: {tensor_parallel_size: 2}\ndeepspeed: {tensor_parallel: {tp: {tp_size: 4}}}\n",
            1,
            ":6:45",
        ),
        ("offload.yaml", SPEC.replace("stage: 1", "stage: 1, offload_param: {device: cpu}"), 1, ":4:42"),
        ("nvme.yaml", SPEC.replace("stage: 1", "stage: 3, offload_optimizer: {device: nvme}"), 1, ":4:46"),
        ("triangle.yaml", SPEC.replace("max_steps: 1", "max_steps: 1, global_batch_size: 7"), 1, ":3:42"),
        ("formats.yaml", SPEC + "precision: {fp16: true, bf16: true}\n", 1, ":5:19"),
        ("typo.yaml", SPEC.replace("max_steps", "max_stepz"), 1, ":3:9"),
        ("missing.yaml", None, 2, ":1:1"),
        ("empty.yaml", "", 1, ":1:1"),
        ("tab.yaml", "train:\n\tmax_steps: 1\n", 1, ":2:1"),
        ("list.yaml", SPEC.replace("{max_steps: 1, per_device_train_batch_size: 2}", "[1, 2]"), 1, ":3:8"),
        ("junk.yaml", bytes(range(256)), 1, ":1:1"),
        ("typo.json", '{"train_batch_size": 2,\n "zero_optimisation": {"stage": 3}}', 1, ":2:2"),
        (
            "gate.json",
            '{"train_batch_size": 2,\n "fp16": {"enabled": true}, "bf16": {"enabled": true},\n "zero_optimization": {"stage": 1}}',
            1,
            ":2:22",
        ),
        ("triangle.json", '{"train_batch_size": 3,\n "train_micro_batch_size_per_gpu": 2}', 1, ":1:22"),
    ],
)
def test_a_wrong_file_gives_findings_with_a_place(name, content, code, place, write, tmp_path):
    file = write(name, content) if content is not None else str(tmp_path / name)
    result = run("validate-config", file, "--world-size", "2")
    assert result.exit_code == code, result.output
    assert f"--> {file}{place}\n" in result.stdout, result.stdout
    assert "Traceback" not in result.output
    assert result.stdout.count("error[") >= 1


def test_several_files_in_one_call_and_the_worst_code_wins(write, tmp_path):
    result = run("validate-config", write("a.yaml", SPEC), write("b.yaml", "train: 1\n"), str(tmp_path / "none"))
    assert result.exit_code == 2
    assert re.search(r"\n3 errors +\S+b.yaml\n1 error  +\S+none\n\nFound 4 errors in 3 files", result.stdout)


@pytest.mark.parametrize("format", ["json", "github", "sarif"])
def test_formats_for_programs_are_only_that(format, write):
    result = run("validate-config", write("a.yaml", "train: 1\n"), "--format", format)
    assert result.exit_code == 1
    if format == "github":
        assert all(line.startswith("::error ") for line in result.stdout.splitlines())
    else:
        assert json.loads(result.stdout)


def test_standard_input(write):
    result = run("validate-config", "-", stdin="train: {max_stepz: 1}\n")
    assert result.exit_code == 1
    assert "--> -:1:9" in result.stdout


def test_a_hostfile_gives_the_world(write):
    spec = write("a.yaml", SPEC.replace("max_steps: 1", "max_steps: 1, global_batch_size: 12"))
    assert run("validate-config", spec, "--hostfile", write("good", "a slots=2\nb slots=1\n")).exit_code == 0
    bad = run("validate-config", spec, "--hostfile", write("h", "a slots=4\nb slots=x\n"))
    assert bad.exit_code == 1
    assert "error[HO003]" in bad.stdout
    assert " 2 | b slots=x" in bad.stdout
    missing = run("validate-config", spec, "--hostfile", "nowhere")
    assert missing.exit_code == 2
    assert "error[HO001]" in missing.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--world-size", "0"],
        ["--world-size", "x"],
        ["--format", "xml"],
        ["--frobnicate"],
        ["--deepspeed-version", "new"],
    ],
)
def test_a_wrong_option_is_wrong_usage(arguments, write):
    app = [sys.executable, "-m", "harness", "validate-config", write("a.yaml", SPEC), *arguments]
    result = subprocess.run(app, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result
    assert "Traceback" not in result.stderr
    assert result.stderr


@pytest.mark.parametrize("command", [*COMMANDS, None])
def test_every_command_has_help_with_an_example(command):
    result = run(*([command] if command else []), "--help")
    assert result.exit_code == 0
    if command:
        assert "Example: harness " in result.stdout
    else:
        assert all(name in result.stdout for name in COMMANDS)


FORBIDDEN = ("torch", "deepspeed", "transformers", "numpy", "accelerate", "datasets")
SLOW = ("rich", "asyncio", "multiprocessing", "http", "xml", "logging", "harness.plan.memory", "harness.plan.time")
"""What neither the command nor its parser needs, and takes long to import: libraries, and ours that plan a run."""
PROBE = """
import sys, os, json
sys.argv = ["harness", "validate-config", *json.loads(sys.argv[1])]
from harness.__main__ import start
try:
    start()
except SystemExit as end:
    print(json.dumps([int(end.code), sorted(m for m in sys.modules if m.split(".")[0] in %r or m in %r), len(sys.modules)]))
"""


def test_validate_config_imports_nothing_that_it_does_not_need(write):
    good = imported([write("a.yaml", SPEC)], SLOW)
    assert good == (0, [], good[2])
    assert good[2] < len(all_gates()) + 400, "modules loaded for one file, gates included"


LIBRARIES = "import typer, yaml; from pydantic import BaseModel; BaseModel.model_validate"


def test_checking_one_file_costs_little_more_than_its_libraries(write):
    """Beside imports of the same kind, since a busy machine counts odd seconds; on an idle one it is about twice as much."""
    file = write("a.yaml", SPEC)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def seconds(*arguments):
        child = subprocess.Popen([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, cwd=ROOT)
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = 0
        return usage.ru_utime + usage.ru_stime

    libraries = check = 1e9
    for _ in range(20):  # until a round of both was left alone by other processes
        libraries = min(libraries, seconds("-c", LIBRARIES))
        check = min(check, seconds("-m", "harness", "validate-config", file))
        if check < 3.5 * libraries:
            return
    raise AssertionError(f"{check:.2f} s of CPU time beside {libraries:.2f} s of the libraries")


def imported(arguments, slow=()):
    """(exit code, forbidden modules that were imported, how many modules) of a whole process."""
    command = [sys.executable, "-c", PROBE % (FORBIDDEN, slow), json.dumps(arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return tuple(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("kind", ["good", "bad", "json"])
def test_validate_config_imports_no_library_that_computes(kind, write):
    files = {
        "good": ("a.yaml", SPEC),
        "bad": ("b.yaml", "trian: 1\n"),
        "json": ("c.json", '{"train_batch_size": 1, "zero_optimization": {"stage": 2}}'),
    }
    code, modules, _ = imported([write(*files[kind])])
    assert code == (1 if kind == "bad" else 0), (kind, modules)
    assert modules == []


def harness(arguments, **kwargs):
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, capture_output="stdout" not in kwargs, text=True, check=False, **kwargs)


def test_nothing_that_is_printed_fails_in_a_plain_locale(write):
    file = write("a.yaml", "name: \u00e9\u4e2d\n")
    result = harness(["validate-config", file], env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 1
    assert "SP007" in result.stdout


def test_an_argument_that_is_no_text_is_no_traceback(write):
    command = [sys.executable, "-m", "harness", "validate-config", write("a.yaml", SPEC), "--set", b"name=\xff"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    assert "harness itself failed" not in result.stderr


def test_a_closed_or_full_stdout_keeps_its_exit_code(write):
    bad = write("a.yaml", "train: 1\n")
    shell = ["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, "-m", "harness", "validate-config", bad]
    closed = subprocess.run(shell, capture_output=True, check=False)
    assert closed.returncode == 1, closed.stderr
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "harness", "validate-config", bad],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode != 0
    assert "harness itself failed" not in result.stderr


def test_two_numbers_of_ranks_are_told(write):
    spec, hosts = write("a.yaml", SPEC), write("h", "a slots=2\n")
    both = run("validate-config", spec, "--hostfile", hosts, "--world-size", "16")
    assert both.exit_code == 1
    assert "HO005" in both.stdout
    ignored = run("validate-config", spec, "--hostfile", hosts, "--set", "launch.num_gpus=8")
    assert ignored.exit_code == 0
    assert "warning[HO005]" in ignored.stdout


def test_a_broken_override_is_wrong_usage_and_shown(write):
    result = run("validate-config", write("a.yaml", SPEC), "--set", "train.max_steps=2", "--set", "train.seed=[1")
    assert result.exit_code == 2
    assert "--> the command line, train.seed=[1" in result.stdout
