# SPDX-License-Identifier: Apache-2.0
"""Every option of `launch`, in every form that the shell may give it, in the command line of a Slurm job or a JobSet.

Each is parsed, spelled out for the inner command, and parsed again, without a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer.main

from harness.cli.app import build_app
from harness.cli.options import spell_out_arguments
from harness.launching.setup.jobset import JOB_UID_VARIABLE, Pods, pod_command
from harness.launching.setup.jobset_checks import pod_arguments
from harness.launching.setup.slurm import job_command
from tests.support.jobset_pods import expand_command

VALUES = {"resume": "latest", "format": "json", "progress": "plain", "num_nodes": "2", "num_gpus": "3"}
VALUES |= {"node_rank": "1", "max_restarts": "0", "profile": "steps=1-2,flops", "overrides": "train.max_steps=3"}
NOT_IN_A_JOB = {"sbatch", "resume", "dry_run", "container", "container_mount"}
PODS_HAVE_OTHERS = {"hosts", "resume", "max_restarts", "no_ssh", "run_id", "node_rank", "master_addr"}
NOT_IN_A_POD = {"hostfile", "include", "exclude", "num_nodes", "num_gpus", "dry_run", "no_preflight", "kubernetes"}
NOT_IN_A_POD |= {"image", "namespace", "pvc", "workdir", "env_from", "nvme_class", "pod_patch", "output"}


@cache
def program() -> Any:
    """The program, with `launch` alone."""
    return typer.main.get_command(build_app(["launch"]))


def parse(*words: str) -> Any:
    """The context of `launch` with these words."""
    command = program().commands["launch"]
    return command.make_context("launch", list(words))


@cache
def default() -> Any:
    """The context without an option."""
    return parse("s.yaml")


def forms() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option of `launch` with each of its names, long, short, glued to its value and behind a flag."""
    for param in program().commands["launch"].params:
        if param.param_type_name != "option" or param.name == "help":
            continue
        value = VALUES.get(param.name, "-a b=$(HOME) $$x")
        for name in (*param.opts, *param.secondary_opts):
            is_short = not name.startswith("--")
            if param.is_flag:
                yield param.name, (name,)
                continue
            yield param.name, (name, value)
            yield param.name, (f"{name}{value}",) if is_short else (f"{name}={value}",)
            if is_short:
                yield param.name, (f"-q{name[1:]}", value)
                yield param.name, (f"-q{name[1:]}{value}",)
            if param.multiple:
                yield param.name, (name, value, f"{name}=second")


def differences(given: Any, inner: Any) -> set[str]:
    """The names of the values that the inner command parses otherwise."""
    return {name for name, value in given.params.items() if inner.params[name] != value}


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for _, words in forms()])
def test_the_inner_commands_parse_what_was_given(words: tuple[str, ...]) -> None:
    given = parse(*words, "--", "-s.yaml")
    spelled = spell_out_arguments(given)
    given.params["spec"] = "./-s.yaml"

    job = job_command(spelled, {})
    job = job[job.index("launch") + 1 :]
    assert differences(given, parse(*job, "--resume", given.params["resume"])) <= NOT_IN_A_JOB - {"resume"}
    assert not [word for word in job if word.startswith(("--sbatch", "--dry-run", "--resume"))]

    container = {"command": pod_command(pod_arguments(spelled), Pods("j", 2, 1))}
    pod = expand_command(container, {"JOB_COMPLETION_INDEX": "1", JOB_UID_VARIABLE: "u"})
    inner = parse(*pod[2:])
    assert pod[:2] == ["harness", "launch"]
    assert differences(given, inner) <= NOT_IN_A_POD | PODS_HAVE_OTHERS
    assert not differences(default(), inner) & NOT_IN_A_POD, "no option of the submission is left"
    assert inner.params["hosts"] == "j-worker-0-[0-1].j:1"


def test_each_option_has_a_form_and_the_only_short_ones_are_q_and_o() -> None:
    names = {name for name, _ in forms()}
    assert names == {p.name for p in program().commands["launch"].params if p.param_type_name == "option"} - {"help"}
    assert {words[0] for _, words in forms() if len(words[0]) == 2} == {"-q", "-o"}
