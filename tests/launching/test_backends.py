# SPDX-License-Identifier: Apache-2.0
"""Ranks that mpirun, srun or each host itself starts: what they are told. Needs nothing; a second."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.hostinfo import machine
from harness.launching.setup import launch_checks as module
from harness.launching.setup.launch_checks import check_launch
from harness.launching.setup.launch_plan import LaunchPlan, Network, RunTarget, build_launch_plan
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.hostfile import Cluster, Host
from harness.spec.run_spec import RunSpec
from tests.launching.test_launch_plan import CONFIG, HERE
from tests.support.deepspeed_commands import understood

ROOT = Path(__file__).parents[2]
NETWORK = Network("eth1", "10.0.0.1")


def run_of(launcher: str = "pdsh", env: dict[str, str] | None = None, slots: tuple[int, ...] = (2, 2)) -> ResolvedRun:
    spec = RunSpec.model_validate({"zero": {"stage": 3}, "launch": {"launcher": launcher, "env": env or {}}})
    return resolve_run(
        spec, name="demo", cluster=Cluster.from_pairs([(name, n) for name, n in zip("ab", slots, strict=True)])
    )


def planned(run: ResolvedRun, node: int | None = None, network: Network | None = NETWORK) -> LaunchPlan:
    return build_launch_plan(
        run, CONFIG, HERE, RunTarget(Path("/runs/demo-1"), {"hostfile": "h"}, node_rank=node), network
    )


def option(plan: LaunchPlan, name: str) -> str:
    return plan.argv[plan.argv.index(name) + 1]


def told(plan: LaunchPlan) -> dict[str, str]:
    return {v.name: v.value for v in plan.variables}


def gates(run: ResolvedRun, monkeypatch: pytest.MonkeyPatch, node: int | None = None, **environ: str) -> dict[str, str]:
    monkeypatch.setattr(machine, "package_version", lambda _: "1")
    monkeypatch.setattr(module, "find_program", lambda program: f"/bin/{program}")
    here = replace(HERE, environ={**HERE.environ, **environ}, cwd=Path("/w"), scripts=ROOT / "harness" / "workers")
    return {f.gate: f.message for f in check_launch(run, here, Path("/runs/demo-1"), node)}


def test_pdsh_needs_no_word():
    plan = planned(run_of())
    assert "--launcher" not in plan.argv
    assert "MASTER_ADDR" not in told(plan)


def test_mpirun_numbers_ranks_as_the_hostfile_does_and_binds_none():
    plan = planned(run_of("openmpi"))
    assert option(plan, "--launcher") == "openmpi"
    words = shlex.split(option(plan, "--launcher_args"))
    assert words[:4] == ["--map-by", "slot", "--bind-to", "none"]
    assert words[4:] == ["--mca", "btl_tcp_if_include", "eth1", "--mca", "oob_tcp_if_include", "eth1"]
    assert told(plan)["MASTER_ADDR"] == "10.0.0.1"
    assert told(plan)["MASTER_PORT"] == "29500"
    assert "MASTER_ADDR=10.0.0.1\n" in plan.files()["deepspeed.env"]


def test_no_shell_would_replace_a_path():
    assert told(planned(run_of("openmpi")))["PATH"] == "/venv/bin:/usr/bin"
    assert told(planned(run_of()))["PATH"] == "/venv/bin:$PATH"


def test_mpirun_is_told_that_root_is_meant():
    run = run_of("openmpi")
    assert not [name for name in told(planned(run)) if name.startswith("OMPI")]
    plan = build_launch_plan(run, CONFIG, replace(HERE, is_root=True), RunTarget(Path("/r"), {}), NETWORK)
    assert plan.environment({})["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


def test_srun_gets_the_hosts_and_as_many_ranks_on_each():
    words = shlex.split(option(planned(run_of("slurm")), "--launcher_args"))
    assert {"--nodelist=a,b", "--nodes=2", "--ntasks-per-node=2", "--overlap"} <= set(words)


@pytest.mark.parametrize("launcher", ["openmpi", "slurm"])
def test_deepspeed_understands_the_words(launcher):
    command = understood(planned(run_of(launcher)).argv, {"a": 2, "b": 2}, launcher)
    assert command[0] == {"openmpi": "mpirun", "slurm": "srun"}[launcher]
    assert command[command.index("-n") + 1] == "4"
    assert command[-3:] == ["/harness/workers/train_worker.py", "--run", "/runs/demo-1"]


def test_what_would_not_arrive_is_refused(monkeypatch):
    assert "EN007" in gates(run_of("openmpi", {"ODD": "it's"}), monkeypatch)
    assert "EN007" not in gates(run_of("openmpi", {"ODD": "a,b"}), monkeypatch)
    assert "EN007" in gates(run_of("slurm", {"ODD": "a,b"}), monkeypatch, SLURM_JOB_ID="1")


def test_what_mpirun_and_srun_cannot_place_is_refused(monkeypatch):
    chosen = Cluster((Host("a", 1, (1,)), Host("b", 1, (0,))))
    run = run_of("openmpi")._replace(cluster=chosen)
    assert "first devices" in gates(run, monkeypatch)["EN012"]
    assert "EN012" not in gates(run_of("openmpi", slots=(2, 1)), monkeypatch)
    assert "different numbers" in gates(run_of("slurm", slots=(2, 1)), monkeypatch, SLURM_JOB_ID="1")["EN012"]
    assert "not a Slurm job" in gates(run_of("slurm"), monkeypatch)["EN012"]
    assert "EN012" not in gates(run_of("slurm"), monkeypatch, SLURM_JOB_ID="1")


def test_the_program_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(machine, "package_version", lambda _: "1")
    monkeypatch.setattr(module, "find_program", lambda _: None)
    found = {f.gate: f for f in check_launch(run_of("openmpi"), HERE, Path("/r"))}
    assert "`mpirun`" in found["EN009"].message
    assert "openmpi-bin" in found["EN009"].fix.title


def test_a_host_of_its_own_starts_its_own_ranks_and_reaches_nobody():
    plan = planned(run_of(), node=1)
    assert option(plan, "--node_rank") == "1"
    assert option(plan, "--master_addr") == "10.0.0.1"
    assert "--no_ssh" in plan.argv
    assert (plan.local, plan.starts_remote_ranks, plan.is_leader, plan.local_ranks) == (False, False, False, (2, 3))
    assert told(plan)["OMP_NUM_THREADS"] == "8"
    assert "DS_ENV_FILE" not in plan.environment({})
    assert "DS_ENV_FILE" not in plan.script()
    assert planned(run_of(), node=0, network=Network()).argv[plan.argv.index("--master_addr") + 1] == "a"


def test_one_host_alone_starts_nobody_again(monkeypatch):
    spec = RunSpec.model_validate({"launch": {"max_restarts": 2}})
    run = resolve_run(spec, name="demo", cluster=Cluster.from_pairs([("a", 1), ("b", 1)]))
    assert "EN012" in gates(run, monkeypatch, node=0)
    assert "EN012" not in gates(run_of(), monkeypatch, node=0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "3 4 1"),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, "2 8 0"),
        ({"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "5 6 5"),
        ({}, "None None None"),
    ],
)
def test_a_rank_finds_its_number(given, expected):
    script = (
        "import os, train_worker; train_worker.set_rank_variables();"
        " print(*(os.environ.get(name) for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')))"
    )
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD", "LOCAL", "OMPI", "SLURM"))}
    environ = {**plain, **given, "PYTHONPATH": str(ROOT / "harness" / "workers")}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
