# SPDX-License-Identifier: Apache-2.0
"""Secrets and names on the command lines and in the job scripts that commands write for others."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import UserError
from harness.hostinfo import torch_probe
from harness.hostinfo.host_survey import parse_host_facts
from harness.launching.hosts.preflight_survey import build_torch_request
from harness.launching.ops import remote_build
from harness.launching.programs import rehearsal
from harness.launching.programs.trial_runner import TrialSettings, launch_command
from harness.launching.setup import slurm
from harness.spec.host_selection import expand_nodelist, slurm_hosts
from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import SPEC, run_command
from tests.security.test_secrets import TOKEN, planned


def decoded_words(command: list[str]) -> str:
    """All words of a command that ssh runs, and what their base64 says."""
    text = " ".join(command)
    for word in text.split():
        try:
            text += base64.urlsafe_b64decode(word.strip("'")).decode()
        except ValueError:
            continue
    return text


@Attempt(
    "S30",
    "a token in `launch.env` of a run on several hosts that compiles ops",
    "in base64 on the command line of ssh and of each host, for all who list processes",
    "not sent: a compiler needs none",
)
def test_op_builders(tmp_path: Path) -> None:
    plan = replace(planned(tmp_path, ("a", 2), ("b", 2)), ops=("cpu_adam",))
    text = decoded_words(remote_build._builder_command(plan, tmp_path))
    assert '"PLAIN": "visible"' in text
    assert TOKEN not in text
    assert "caller5678" not in text


@Attempt(
    "S31",
    "a token in `launch.env` of a run whose hosts are asked what torch finds (`preflight`, `launch`)",
    "in base64 on the command line of ssh and of each host",
    "not sent",
)
def test_torch_of_hosts() -> None:
    scripts = Path(torch_probe.__file__).parents[1] / "workers"
    request = build_torch_request(scripts, "", {"HF_TOKEN": TOKEN, "PLAIN": "visible"}, 1.0)
    assert request["environ"] == {"PLAIN": "visible"}
    assert TOKEN not in json.dumps(request)


@pytest.mark.parametrize(
    "option",
    [
        attempt_param(
            Attempt("S32", "`launch --slurm --set launch.env.HF_TOKEN=...`", "in the job's script, mode 0755", "SE003"),
            f"launch.env.HF_TOKEN={TOKEN}",
        ),
        attempt_param(
            Attempt("S33", "the same with blanks, or as a map", "in the script, and in the line that a finding quotes",
                    "SE003, as many `*`"),
            f" launch.env.HF_TOKEN = {TOKEN}",
        ),
        pytest.param(f"launch.env={{HF_TOKEN: {TOKEN}}}", id="map"),
    ],
)  # fmt: skip
def test_job_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SPEC)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["harness"])
    answer = run_command("launch", "s.yaml", "--slurm", "--dry-run", "--set", option).assert_unharmed()
    assert answer.code
    assert TOKEN not in answer.text
    assert "would write a secret" in answer.text


@Attempt(
    "S34",
    "`rehearse` of a spec with a token in `launch.env`",
    "in `spec.yaml` of the rehearsal's folder, mode 0644",
    "in no file: random weights need none",
)
def test_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "missing_packages_finding", lambda: None)
    raw = {"zero": {"stage": 3}, "launch": {"env": {"HF_TOKEN": TOKEN, "PLAIN": "visible"}}}
    plan = SimpleNamespace(folder=tmp_path / "r", run=SimpleNamespace(name="demo"), small=SimpleNamespace(raw_spec=raw))
    rehearsal.prepare_rehearsal(plan)  # type: ignore[arg-type]
    text = (tmp_path / "r" / "spec.yaml").read_text()
    assert "visible" in text
    assert TOKEN not in text


@Attempt(
    "C50",
    "a spec called `--hostfile=evil`, given to `tune` behind `--`",
    "an option of the `harness launch` that a trial starts",
    "a file: it is behind `--` there, too",
)
def test_trial() -> None:
    settings = TrialSettings("--hostfile=evil", ["train.seed=1"], ["--num-gpus", "1"], Path("t"), 3, 1, 9.0)
    run = SimpleNamespace(spec=SimpleNamespace(scheduler=SimpleNamespace(warmup_steps=None, decay_steps=None)))
    command = launch_command(settings, run, {}, Path("t/0"))  # type: ignore[arg-type]
    assert command[-2:] == ["--", "--hostfile=evil"]


@Attempt(
    "C51",
    'hosts whose network interface is called `eth0"; touch ran; "`',
    "set for all hosts, by DeepSpeed's `export` without an escape, where every host that answered named it so",
    "no name of an interface: the host has no usable answer",
)
def test_interface() -> None:
    answer: dict[str, Any] = {
        "machine": "m", "hostname": "a", "python": "3", "packages": {}, "accelerators": [], "cores": 1, "folders": {},
        "memory": {"total": 1, "available": 1}, "memlock": None, "nofile": None, "shm": None, "compiler": None,
        "own_addresses": [], "ports": {},
    }  # fmt: skip
    for name in ("eth0", "bond0.100", "enp3s0f1@if2", 'eth0"; touch ran; "', "$(touch ran)", "-x y", "a\nb", ""):
        answer["interfaces"] = [{"name": name, "address": "10.0.0.1", "prefix": 24, "loopback": False}]
        if name[:4] in ("eth0", "bond", "enp3") and '"' not in name:
            assert parse_host_facts("a", 1, answer, 0.0, (0.0, 0.0)).interfaces[0].name == name
        else:
            with pytest.raises(ValueError, match="no name of an interface"):
                parse_host_facts("a", 1, answer, 0.0, (0.0, 0.0))


@Attempt(
    "C52",
    "`SLURM_JOB_NODELIST` with line breaks, options, substitutions, users and ranges, and counts of any length",
    "HO026",
    "HO026, or names that no shell and no option parser reads otherwise",
)
def test_slurm_variables() -> None:
    for nodes in (
        "a\nb slots=9", "-oProxyCommand=x", "$(touch ran)", "`touch ran`", "a;b", "me@a", "a[1-2]\n#SBATCH", "%h", "~",
        "a b", "n[1-2", "n[a-b]", "n[2-1]", "n[1-999999999]", ",", "[]", "n[1][2]", "'", '"',
    ):  # fmt: skip
        cluster, findings = slurm_hosts({"SLURM_JOB_NODELIST": nodes, "SLURM_NTASKS_PER_NODE": "2"})
        assert findings or (cluster and all(h.name.replace(".", "").isalnum() for h in cluster.hosts)), nodes
        assert {f.gate for f in findings} <= {"HO026"}
    for count in ("0", "-1", "1" * 5000, "000000001" + "9" * 3000, "2(x", "1(x1000000)", "$(touch ran)", "\n"):
        for name in ("SLURM_GPUS_PER_NODE", "SLURM_TASKS_PER_NODE"):
            _, findings = slurm_hosts({"SLURM_JOB_NODELIST": "a,b", name: count})
            assert [f.gate for f in findings][:1] == ["HO026"], (name, count)
    assert expand_nodelist("n[01-03,7],login") == ["n01", "n02", "n03", "n7", "login"]


@Attempt(
    "C53",
    "an option of sbatch, a folder and a resume with line breaks and `#SBATCH` lines",
    "quoted, behind the first command of the script, where sbatch reads no more directives",
    "quoted, behind the first command of the script, where sbatch reads no more directives",
)
def test_directives(tmp_path: Path) -> None:
    evil = "x\n#SBATCH --wrap=touch\n"
    job = slurm.build_job(evil, tmp_path / evil, tmp_path / evil, ("harness", evil), evil, [evil], "1")
    head, _, _ = job.script.partition("\ncd ")
    assert "touch" not in head.replace("x--SBATCH---wrap-touch-", "")
    assert job.argv[:2] == ("sbatch", "--parsable")
    assert job.argv[3] == evil  # one word of the caller's own
    with pytest.raises(UserError):
        slurm.job_command(["--set", f"launch.env.A_TOKEN={TOKEN}"], {"A_TOKEN": TOKEN})
    assert slurm.job_command(["launch", f"--sbatch={evil}", "s.yaml"], {})[-2:] == ["launch", "s.yaml"]
