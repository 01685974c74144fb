# SPDX-License-Identifier: Apache-2.0
"""Hostfiles, options and environments that somebody wrote to have a shell run something. Needs a shell; seconds.

What is let through must arrive as it is, in the very command that DeepSpeed makes of it; everything else is refused.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.gates import check_run
from harness.launching.hosts.local_host import LocalHost
from harness.launching.setup.launch_checks import check_launch
from harness.launching.setup.launch_plan import RunTarget, build_launch_plan
from harness.run.resolved_run import resolve_run
from harness.spec.host_selection import parse_hosts, slurm_hosts
from harness.spec.hostfile import Cluster, parse_hostfile
from harness.spec.parse.source import Source
from harness.spec.run_spec import RunSpec
from tests.support.deepspeed_commands import exported

EVIL = [
    "$(touch marker)",
    "`touch marker`",
    '"; touch marker; "',
    "'; touch marker; '",
    "a; touch marker",
    "a && touch marker",
    "a | touch marker",
    "a\ntouch marker",
    "a\\",
    "%h touch",
    "${IFS}touch${IFS}marker",
    "~root * ? [a] {b,c} ! # & > marker",
    "-oProxyCommand=touch marker",
    "--launcher_args=-R",
    " leading",
    "a\0b",
    "\u2028touch marker",
    "x" * 2**20,
]
NAMES = [word for word in EVIL if "x" * 100 not in word]


def here(folder: Path, **environ: str) -> LocalHost:
    return LocalHost(
        hostname="login",
        cwd=folder,
        python=sys.executable,
        deepspeed=("deepspeed",),
        scripts=Path(__file__).parents[2] / "harness" / "workers",
        cores=1,
        accelerated=False,
        num_accelerators=0,
        port=23456,
        supervisor_id="login:1:2",
        environ={"PATH": os.environ["PATH"], **environ},
        local_names=frozenset(),
        has_default_hostfile=False,
    )


@pytest.mark.parametrize("name", [word for word in EVIL if word != " leading"])
def test_such_a_host_is_refused_wherever_it_is_named(name):
    for text in (f"{name} slots=1\n", f"{name}\n", f"a slots=1\n{name} slots=1\n", f"a slots={name}\n"):
        cluster, findings = parse_hostfile(text, "hosts")
        assert cluster is None or all(re.fullmatch(r"[A-Za-z0-9._:@-]+", h.name) for h in cluster.hosts)
        assert findings
        assert all(len(finding.message) < 400 for finding in findings)
    assert parse_hosts(f"{name}:1")[0] is None
    assert slurm_hosts({"SLURM_JOB_NODELIST": name, "SLURM_TASKS_PER_NODE": "1"})[0] is None


@pytest.mark.parametrize("value", EVIL)
def test_a_value_is_refused_or_arrives_as_it_is(tmp_path, value):
    """DeepSpeed writes `export NAME="VALUE"; ` into the remote command (`launcher/multinode_runner.py`, add_export)."""
    spec = RunSpec.model_validate({"launch": {"env": {"ODD": value}}})
    run = resolve_run(spec, name="demo", cluster=Cluster.from_pairs((("a", 1), ("b", 1))))
    found = {f.gate for f in check_launch(run, here(tmp_path), tmp_path / "run")}
    refused = bool(found & {"EN006", "EN007"})
    assert refused or "marker" not in value or not re.search(r"[$`\"\\]", value)
    plan = build_launch_plan(run, {}, here(tmp_path), RunTarget(tmp_path / "run", {}))
    if not refused:
        lines = [line.partition("=") for line in plan.files()["deepspeed.env"].split("\n") if line]
        exports = "".join(f'export {name}="{text}"; ' for name, _, text in lines)
        for shell in ("sh", "bash"):  # by stdin: a megabyte is too long for an argument
            script = f'{exports}printf %s "$ODD"\n'
            done = subprocess.run([shell], input=script, text=True, capture_output=True, check=True, cwd=tmp_path)
            assert done.stdout == value
    if "\0" not in value:
        # What a person runs by hand has the value as it is, whatever it is.
        script = (
            "\n".join(x for x in plan.script().split("\n") if not x.startswith(("cd ", "exec "))) + '\nprintf %s "$ODD"'
        )
        done = subprocess.run(["sh"], input=script, text=True, capture_output=True, check=True, cwd=tmp_path)
        assert done.stdout == value
    assert list(tmp_path.iterdir()) == []


SHELL = [*(v for v in NAMES if "\0" not in v), 'a"; touch marker; echo "b', "$HOME", "a b=c", "it's; fine", "50%"]


@pytest.mark.parametrize("value", SHELL)
def test_a_value_that_the_gate_lets_through_runs_nothing_in_deepspeeds_own_command(tmp_path, value):
    spec = RunSpec.model_validate({"launch": {"env": {"ODD": value}}})
    run = resolve_run(spec, name="demo", cluster=Cluster.from_pairs((("a", 1), ("b", 1))))
    source = Source("spec.yaml", "yaml", "", {})
    refused = "SE005" in {f.gate for f in check_run(run, source).findings}
    script = exported({"ODD": value}) + 'printf %s "$ODD"'
    done = subprocess.run(["sh", "-c", script], text=True, capture_output=True, check=False, cwd=tmp_path)
    safe = done.stdout == value.strip() and not list(tmp_path.iterdir())
    assert refused or safe, script
    if value in ("a b=c", "it's; fine"):
        assert safe
        assert not refused


@pytest.mark.parametrize("name", ["$(touch marker)", "A B", "a;touch marker", "", "1A", "A=B", "A\nB", "-x"])
def test_a_name_of_a_variable_is_one_or_refused(tmp_path, name):
    run = resolve_run(
        RunSpec.model_validate({"launch": {"env": {name: "1"}}}),
        name="demo",
        cluster=Cluster.from_pairs((("a", 1), ("b", 1))),
    )
    assert "EN006" in {f.gate for f in check_launch(run, here(tmp_path), tmp_path)}


@pytest.mark.parametrize("value", [v for v in NAMES if "\0" not in v and re.search(r"[$`\"\\%\n]|^ ", v)])
@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "MLFLOW_RUN", "UCX_TLS", "DS_ACCELERATOR", "HF_HOME", "PYTHON$(touch x)"]
)
def test_what_the_shell_exports_is_refused_where_it_would_run(tmp_path, name, value):
    run = resolve_run(RunSpec.model_validate({}), name="demo", cluster=Cluster.from_pairs((("a", 1), ("b", 1))))
    assert "EN007" in {f.gate for f in check_launch(run, here(tmp_path, **{name: value}), tmp_path)}


@pytest.mark.parametrize("path", ["/a b", "/a;touch marker", "/$(touch marker)", "/a'b", "/a\nb", "/a%h"])
def test_paths_that_a_remote_shell_would_split_are_refused(tmp_path, path):
    run = resolve_run(RunSpec.model_validate({}), name="demo", cluster=Cluster.from_pairs((("a", 1), ("b", 1))))
    there = here(tmp_path)
    for place, run_dir in ((there, Path(path)), (replace(there, cwd=Path(path)), tmp_path)):
        assert "EN008" in {f.gate for f in check_launch(run, place, run_dir)}


def test_the_whole_command_runs_nothing(tmp_path):
    """Hostile files and options to the program itself; `ssh`, `pdsh` and `deepspeed` leave a mark if they are started."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ssh", "pdsh", "srun", "mpirun"):
        (programs / name).write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/started\n')
        (programs / name).chmod(0o755)
    spec = tmp_path / "spec.yaml"
    spec.write_text("model: {name_or_path: a/b}\ndata: {train: x.jsonl}\ntrain: {max_steps: 1}\n")
    (tmp_path / "hosts").write_bytes("".join(f"{word} slots=1\n" for word in EVIL).encode())
    environ = dict(os.environ) | {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "$(touch marker)"}
    for words in (["--hostfile", "hosts"], ["--hosts", "-oProxyCommand=touch marker:1,b:1"], ["--slurm"]):
        for command in ("preflight", "launch"):
            argv = [sys.executable, "-m", "harness", command, "spec.yaml", *words]
            done = subprocess.run(argv, cwd=tmp_path, env=environ, text=True, capture_output=True, check=False)
            assert done.returncode in (1, 2, 4), done.stderr
            assert "Traceback" not in done.stderr
            assert len(done.stderr) < 60_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "hosts", "spec.yaml"]
