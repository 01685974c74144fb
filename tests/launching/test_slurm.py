# SPDX-License-Identifier: Apache-2.0
"""A launch as a Slurm job: the script that is handed in, and what it does, with stand-ins for `sbatch` and `scontrol`.

That Slurm itself takes such a script is tested in `tests/hosts/test_slurm_across_hosts.py`, where Slurm is installed. Needs bash; seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli.no_ssh_options import parse_no_ssh
from harness.errors import UserError
from harness.launching.setup.slurm import SlurmContainer, build_job, is_outside_job, submit_job

SPEC = "model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}, tokenizer: bytes}\ndata: {train: x.jsonl}\ntrain: {max_steps: 2, per_device_train_batch_size: 1}\noptimizer: {type: sgd}\n"


def job(tmp_path: Path, *command: str, resume: str = "never", name: str = "demo"):
    return build_job(name, tmp_path, tmp_path / "runs", command, resume, ["--nodes=2"], "1")


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in {"sbatch": 'echo "4711;cluster"', "scontrol": ":"}.items():
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/{name}.said\n{body}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in [key for key in os.environ if key.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    return folder


def start(tmp_path: Path, made, **environ: str) -> subprocess.Popen[str]:
    (tmp_path / "job.sh").write_text(made.script)
    env = dict(os.environ) | {"SLURM_JOB_ID": "9"} | environ
    return subprocess.Popen(["bash", str(tmp_path / "job.sh")], env=env, text=True, stdout=subprocess.PIPE)


def test_a_job_is_submitted_with_the_options_of_the_user(tmp_path, programs):
    made = job(tmp_path, "python", "-m", "harness", "launch", "a b.yaml", "--slurm")
    assert submit_job(made) == "4711"
    said = (tmp_path / "sbatch.said").read_text().splitlines()
    assert said == ["--parsable", f"--output={tmp_path}/runs/slurm/demo-1-%j.log", "--nodes=2", str(made.file)]
    assert made.file.read_text() == made.script
    assert os.access(made.file, os.X_OK)


def test_what_sbatch_says_against_it_is_told(tmp_path, programs, monkeypatch):
    (programs / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    with pytest.raises(UserError) as refused:
        submit_job(job(tmp_path, "true"))
    assert "error: invalid partition specified: x" in refused.value.findings[0].message
    (programs / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UserError) as refused:
        submit_job(job(tmp_path, "true"))
    assert "cannot be started" in refused.value.findings[0].message


@pytest.mark.parametrize("code", [0, 1, 3, 137])
def test_a_job_ends_with_the_runs_code(tmp_path, programs, code):
    child = start(tmp_path, job(tmp_path, "sh", "-c", f"exit {code}"))
    assert child.wait(20) == code
    assert not (tmp_path / "scontrol.said").exists()


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_at_the_notice_the_run_is_told_waited_for_and_queued_again(tmp_path, programs, signum):
    code = "import signal, sys, time\ndef told(*_):\n    time.sleep(1)\n    sys.exit(138)\nsignal.signal(signal.SIGUSR1, told)\nprint('up', flush=True)\ntime.sleep(30)"
    child = start(tmp_path, job(tmp_path, sys.executable, "-c", code))
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    time.sleep(0.2)
    child.send_signal(signum)
    assert child.wait(20) == 0
    assert (tmp_path / "scontrol.said").read_text().split() == ["requeue", "9"]


def test_it_goes_on_where_it_was_when_slurm_starts_it_again(tmp_path, programs):
    show = (
        sys.executable,
        "-c",
        "import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]]))",
        "it's",
        "$(touch x)",
    )
    old = tmp_path / "runs" / "demo-1" / "checkpoints" / "step-00000002" / "manifest.json"
    other = tmp_path / "runs" / "other-1" / "checkpoints" / "step-00000009" / "manifest.json"
    new = tmp_path / "runs" / "demo-2" / "checkpoints" / "step-00000001" / "manifest.json"
    script = job(tmp_path, "true").file
    for path, seconds in ((old, 1), (script, 2)):  # a run from before the job, then the job
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (seconds, seconds))
    other.parent.mkdir(parents=True)  # of another run, after the job
    other.touch()
    first = [("never", "0", "never"), ("never", "1", "never"), ("runs/a b", "0", "runs/a b"), ("runs/a b", "1", "auto")]
    for resume, count, expected in [*first, ("never", "2", "auto"), ("never", "0", "never")]:
        if count == "2":
            new.parent.mkdir(parents=True)
            new.touch()
        child = start(tmp_path, job(tmp_path, *show, resume=resume), SLURM_RESTART_COUNT=count)
        out, _ = child.communicate(timeout=20)
        assert json.loads(out) == [str(tmp_path), "it's", "$(touch x)", "--resume", expected]
    assert not (tmp_path / "x").exists()


def test_a_name_is_one_word_for_sbatch(tmp_path):
    made = job(tmp_path, "true", name="a\n#SBATCH --uid=0 $(x)")
    lines = [line for line in made.script.splitlines() if line.startswith("#SBATCH")]
    assert lines[0] == "#SBATCH --job-name=a--SBATCH---uid-0---x-"
    assert len(lines) == 4


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("image", ["registry#harness:1", "/images/harness.sif"])
def test_srun_starts_a_container_on_each_host(tmp_path, programs, image, nodes):
    """`srun` is a stand-in that shows its words, so what Pyxis and Apptainer make of them is not tested here."""
    (programs / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (programs / "srun").chmod(0o755)
    step = SlurmContainer(image, ("/data",)).step(tmp_path, tmp_path / "runs")
    command = [*step, "launch", "it's.yaml", "--slurm"]
    made = build_job("demo", tmp_path, tmp_path / "runs", command, "never", ["--nodes=2"], "1", per_node=True)
    out, _ = start(tmp_path, made, SLURM_JOB_NUM_NODES=str(nodes), SLURM_RESTART_COUNT="2").communicate(timeout=20)
    words = out.splitlines()
    assert words[0] == "--ntasks-per-node=1"
    assert words[2] == "--cpu-bind=none", "or all ranks of a host would share one core"
    own = f"{tmp_path}:{tmp_path}"
    if image.endswith(".sif"):
        assert words[3:12] == [
            "apptainer",
            "exec",
            "--nv",
            "--bind",
            own,
            "--bind",
            "/data:/data",
            "--pwd",
            str(tmp_path),
        ]
    else:
        assert f"--container-mounts={own},/data:/data" in words
        assert f"--container-image={image}" in words
    per_node = ["--no-ssh", "--run-id", "9-2"] if nodes > 1 else []
    assert words[words.index("harness") :] == [
        *("harness", "launch", "it's.yaml", "--slurm", "--resume", "never"),
        *per_node,
    ]


def test_a_container_has_the_runs_that_lie_outside_of_the_current_folder(tmp_path):
    """Else the checkpoints would go into the container, and end with it."""
    folder, disk = tmp_path / "code", tmp_path / "disk"
    folder.mkdir()
    disk.mkdir()
    (folder / "linked").symlink_to(disk)
    (tmp_path / "other").symlink_to(disk)

    def mounts(output_dir: str) -> list[str]:
        words = SlurmContainer("registry#harness:1").step(folder, folder / output_dir)
        (text,) = [word for word in words if word.startswith("--container-mounts=")]
        return text.partition("=")[2].split(",")[1:]

    assert mounts("../runs") == [f"{tmp_path}/runs:{tmp_path}/runs"]
    assert mounts("linked") == [f"{disk}:{disk}"]
    assert mounts("../other/runs") == [f"{disk}/runs:{disk}/runs", f"{disk}/runs:{tmp_path}/other/runs"]
    assert mounts("runs") == mounts("./a/../runs") == []


def test_a_task_of_an_array_has_a_run_and_a_seed_of_its_own(tmp_path, programs):
    show = (
        sys.executable,
        "-c",
        "import json, sys; print(json.dumps(sys.argv[1:]))",
        "--set=train.seed=$SLURM_ARRAY_TASK_ID",
    )
    made = build_job("demo", tmp_path, tmp_path / "runs", show, "never", ["--array=3-5"], "1")
    made.file.parent.mkdir(parents=True)
    made.file.touch()
    os.utime(made.file, (1, 1))
    other = tmp_path / "runs" / "demo-3-1" / "checkpoints" / "step-00000009" / "manifest.json"
    other.parent.mkdir(parents=True)
    other.touch()
    for task, resume in (("3", "auto"), ("4", "never")):
        child = start(tmp_path, made, SLURM_ARRAY_TASK_ID=task, SLURM_RESTART_COUNT="1")
        words = json.loads(child.communicate(timeout=20)[0])
        assert words == [f"--set=train.seed={task}", f"--set=name=demo-{task}", "--resume", resume]


def test_srun_says_which_host_of_the_job_this_is(monkeypatch):
    monkeypatch.setenv("SLURM_NODEID", "3")
    assert parse_no_ssh(True, "9-0", None, None, in_step=True).node_rank == 3
    assert parse_no_ssh(True, "9-0", 1, None, in_step=True).node_rank == 1
    assert parse_no_ssh(True, "9-0", None, None, in_step=False).node_rank is None


def test_outside_a_job_a_dry_run_shows_the_command_of_srun(tmp_path, programs):
    (tmp_path / "spec.yaml").write_text(SPEC.replace("x.jsonl", "builtin:python-docs"))
    (programs / "srun").write_text("#!/bin/sh\n")
    (programs / "srun").chmod(0o755)
    argv = [
        sys.executable,
        "-m",
        "harness",
        "launch",
        "spec.yaml",
        "--hosts",
        "a:2,b:2",
        "--set",
        "launch.launcher=slurm",
    ]
    done = subprocess.run([*argv, "--dry-run"], cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--nodelist=a,b" in done.stdout
    assert "this is not a Slurm job" in done.stderr


def test_inside_a_job_nothing_is_submitted():
    assert is_outside_job({})
    assert not is_outside_job({"SLURM_JOB_ID": "1"})
    assert not is_outside_job({"SLURM_JOB_NODELIST": "n1"})


def test_the_command_checks_first_and_hands_in_itself(tmp_path, programs):
    (tmp_path / "spec.yaml").write_text(SPEC)
    argv = [
        sys.executable,
        "-m",
        "harness",
        "launch",
        "spec.yaml",
        "--slurm",
        "--sbatch",
        "--nodes=2",
        "--sbatch=--time=1",
    ]
    bad = subprocess.run(
        [*argv, "--set", "train.max_steps=-1"], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert bad.returncode == 1
    assert "No job was submitted" in bad.stderr
    dry = subprocess.run([*argv, "--dry-run"], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert "launch spec.yaml --slurm --resume" in dry.stdout
    assert not (tmp_path / "runs").exists()
    done = subprocess.run(argv, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert "Submitted job 4711" in done.stdout
    assert (tmp_path / "sbatch.said").read_text().splitlines()[2:4] == ["--nodes=2", "--time=1"]
    assert "launch spec.yaml --slurm --resume" in next((tmp_path / "runs" / "slurm").iterdir()).read_text()
