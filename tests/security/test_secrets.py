# SPDX-License-Identifier: Apache-2.0
"""Secrets of a run, the modes of its files, and files that another user of the host plants."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.cli.error_handler import report_crash
from harness.errors import UserError
from harness.facts.environment_variables import is_secret
from harness.file_io import replace_file, write_atomically
from harness.launching.hosts.local_host import LocalHost
from harness.launching.process.signals import SignalInterrupt
from harness.launching.setup.environment import with_flops_profiler_output
from harness.launching.setup.launch_plan import LaunchPlan, RunTarget, build_launch_plan
from harness.launching.setup.run_dir import write_run_dir
from harness.launching.supervise import launch_runner
from harness.locks import Lock, current_holder
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.secret_text import HIDDEN
from harness.spec.hostfile import Cluster
from harness.spec.run_spec import RunSpec
from harness.workers import train_worker
from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import SPEC, make_pipe, run_command

TOKEN = "hf_" + "marmalade" * 3
HERE = LocalHost(
    hostname="login",
    cwd=Path("/w"),
    python="/venv/bin/python",
    deepspeed=("/venv/bin/deepspeed",),
    scripts=Path("/harness/workers"),
    cores=16,
    accelerated=False,
    num_accelerators=0,
    port=23456,
    supervisor_id="login:1:2",
    environ={"PATH": "/usr/bin", "HF_TOKEN": "hf_of_the_caller_1234", "MLFLOW_TRACKING_TOKEN": "caller5678"},
    local_names=frozenset({"localhost"}),
    has_default_hostfile=False,
)


def planned(run_dir: Path, *hosts: tuple[str, int]) -> LaunchPlan:
    env = {"HF_TOKEN": TOKEN, "PLAIN": "visible"}
    spec = RunSpec.model_validate({"zero": {"stage": 3}, "launch": {"num_gpus": 2, "env": env}})
    run = resolve_run(spec, name="demo", cluster=Cluster.from_pairs(hosts) if hosts else None)
    documents = {
        "spec.yaml": f"launch: {{env: {{HF_TOKEN: {TOKEN}, PLAIN: visible}}}}\n",
        "spec.resolved.json": json.dumps(run.to_json()),
        "overrides.txt": f"launch.env.HF_TOKEN={TOKEN}\n",
    }
    return build_launch_plan(run, {}, HERE, RunTarget(run_dir, documents))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs/demo-1"


@Attempt(
    "S1", "a token in `launch.env`, one host", "in 6 files of the run, mode 0644", "in no file: the ranks inherit it"
)
def test_one_host(run_dir: Path) -> None:
    plan = planned(run_dir)
    write_run_dir(plan)
    texts = {file.name: file.read_text() for file in run_dir.iterdir() if file.is_file()}
    assert [name for name, text in texts.items() if TOKEN in text] == []
    assert "visible" in texts["deepspeed.env"]
    assert plan.environment({})["HF_TOKEN"] == TOKEN


@Attempt(
    "S2",
    "a token in `launch.env`, several hosts",
    "in `deepspeed.env` and on the command line of pdsh",
    "in a file of mode 0600",
)
def test_several_hosts(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run_dir(planned(run_dir, ("a", 2), ("b", 2)))
    texts = {file.name: file.read_text() for file in run_dir.iterdir() if file.is_file()}
    assert [name for name, text in texts.items() if TOKEN in text] == ["secrets.json"]
    assert stat.S_IMODE((run_dir / "secrets.json").stat().st_mode) == 0o600
    monkeypatch.delenv("HF_TOKEN", raising=False)
    train_worker.load_secrets(run_dir)
    assert os.environ["HF_TOKEN"] == TOKEN


@Attempt("S3", "tokens of the caller's environment", "withheld in launch.json", "in no file")
def test_caller(run_dir: Path) -> None:
    plan = planned(run_dir, ("a", 2), ("b", 2))
    texts = " ".join(plan.files().values())
    assert "hf_of_the_caller_1234" not in texts
    assert "caller5678" not in texts


@Attempt("S4", "`launch.sh` of a run with a token", "`export HF_TOKEN=hf_...`", "it asks for the variable")
def test_script(run_dir: Path) -> None:
    script = planned(run_dir).script()
    assert TOKEN not in script
    head = script.partition("exec ")[0].replace("cd /w ", "cd / ")

    def run(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/bin:/usr/bin", **environ}
        return subprocess.run(["sh", "-c", head], env=env, capture_output=True, text=True, check=False)

    assert run({}).returncode != 0
    assert "HF_TOKEN" in run({}).stderr
    assert run({"HF_TOKEN": "x"}).returncode == 0


@Attempt("S5", "a token in the output of a dry run", "printed", "withheld")
def test_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SPEC + f"launch: {{num_gpus: 1, env: {{HF_TOKEN: {TOKEN}}}}}\n")
    for form in ("text", "json"):
        assert TOKEN not in run_command("launch", "--dry-run", "s.yaml", "--format", form).stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [
        attempt_param(Attempt("S6", "`MY_PASS: hunter2`", "not recognised", "withheld"), "MY_PASS", "hunter2"),
        attempt_param(
            Attempt("S7", "a URL with a password", "not recognised", "withheld"), "DB", "postgres://me:hunter2@db/x"
        ),
        attempt_param(
            Attempt("S8", "an AWS key under another name", "recognised by its form", "withheld"),
            "KEY1",
            "AKIAIOSFODNN7EXAMPLE",
        ),
        attempt_param(
            Attempt("S9", "`AWS_SECRET_ACCESS_KEY`", "withheld of the caller alone", "withheld"),
            "AWS_SECRET_ACCESS_KEY",
            "x/y",
        ),
        attempt_param(
            Attempt("S10", "a private key", "not recognised", "withheld"), "PEM", "-----BEGIN RSA PRIVATE KEY-----"
        ),
    ],
)
def test_names(name: str, value: str) -> None:
    assert is_secret(name, value)


def test_plain_variables_are_no_secrets() -> None:
    plain = {
        "TOKENIZERS_PARALLELISM": "false",
        "NCCL_DEBUG": "INFO",
        "MAX_TOKENS": "8",
        "AUTHOR": "me",
        "PASSES": "2",
        "HF_HOME": "/x",
    }
    assert [name for name, value in plain.items() if is_secret(name, value)] == []


@Attempt(
    "S11", "`--set launch.env.HF_TOKEN=...` and a crash", "the token is in the crash log", "hidden there and on stderr"
)
def test_crash_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(
        sys, "argv", ["harness", "launch", "--set", f"launch.env.MY_TOKEN={TOKEN}", "--set", "x.API_KEY=abc123"]
    )
    try:
        raise RuntimeError(f"https://me:hunter2@host refuses {TOKEN}")
    except RuntimeError:
        report_crash()
    (log,) = tmp_path.glob("harness-crash-*.log")
    text = log.read_text() + capsys.readouterr().err
    assert "RuntimeError" in text
    assert [secret for secret in (TOKEN, "hunter2", "abc123") if secret in text] == []
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@Attempt("S12", "files of a run under umask 022, 027 and 077", "as the umask says", "as the umask says")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_modes(run_dir: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        write_run_dir(planned(run_dir, ("a", 2), ("b", 2)))
        replace_file(run_dir / "one", "x")
        write_atomically(run_dir / "two", "x")
        Lock.acquire(run_dir / "lock").release()
        (run_dir / "lock").touch()
    finally:
        os.umask(old)
    too_wide = [
        str(p) for p in (run_dir, *run_dir.rglob("*")) if not p.is_symlink() and p.stat().st_mode & mask & 0o777
    ]
    assert too_wide == []


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "victim"
    file.write_text("precious")
    yield file
    assert file.read_text() == "precious"


@Attempt(
    "S13",
    "another user plants a link as the lock of a shared folder",
    "the target is emptied",
    "refused, the target stays",
)
def test_planted_link(tmp_path: Path, victim: Path) -> None:
    lock = tmp_path / "lock"
    lock.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        Lock.acquire(lock)
    assert current_holder(lock) is None


@Attempt("S14", "another user plants a pipe as a lock", "an error of the write", "refused at once")
def test_planted_pipe(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        Lock.acquire(make_pipe(tmp_path / "lock"))


@Attempt("S15", "another user plants a folder as a lock", "refused", "refused at once")
def test_planted_folder(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(OSError, match="irectory"):
        Lock.acquire(tmp_path / "lock")


@Attempt("S16", "a lock file that claims a holder of 10^400", "read as none", "read as none")
def test_planted_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"host": "h", "pid": 1' + "0" * 400 + ', "ticks": "x"}')
    assert current_holder(tmp_path / "lock") is None
    Lock.acquire(tmp_path / "lock").release()


@Attempt("S17", "links in place of the files that a run replaces", "the link is replaced", "the link is replaced")
def test_replaced_links(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "status.json").symlink_to(victim)
    replace_file(tmp_path / "status.json", "new")
    assert not (tmp_path / "status.json").is_symlink()


@Attempt("S18", "a `.latest-PID` link of another user", "removed before use", "removed before use")
def test_latest(run_dir: Path, victim: Path) -> None:
    run_dir.parent.mkdir()
    (run_dir.parent / f".latest-{os.getpid()}").symlink_to(victim)
    write_run_dir(planned(run_dir))
    assert (run_dir.parent / "latest").resolve() == run_dir.resolve()


@Attempt("S19", "values that a shell would run, in `launch.sh`", "quoted", "quoted")
def test_script_quotes(tmp_path: Path) -> None:
    env = {"A": "$(touch ran) `touch ran` '; touch ran; \"", "B": "a b\\c"}
    spec = RunSpec.model_validate({"zero": {"stage": 3}, "launch": {"num_gpus": 2, "env": env}})
    plan = build_launch_plan(resolve_run(spec, name="x"), {}, HERE, RunTarget(tmp_path / "a b;c'd", {}))
    script = plan.script().partition("exec ")[0].replace("cd /w ", f"cd {shlex.quote(str(tmp_path))} ")
    done = subprocess.run(
        ["sh", "-c", f'{script}\nprintf "%s|%s" "$A" "$B"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{env['A']}|{env['B']}"
    assert not (tmp_path / "ran").exists()


@Attempt(
    "S20",
    "a run with a secret in `launch.env`, as its ranks and its other hosts read it",
    "no run started: `spec.resolved.json` without the secret was refused by its own sha256",
    "the secret is withheld before the sha256; the file is the one that hosts compare",
)
def test_ranks_read_the_withheld_spec(run_dir: Path) -> None:
    spec = RunSpec.model_validate({"zero": {"stage": 3}, "launch": {"num_gpus": 2, "env": {"HF_TOKEN": TOKEN}}})
    run = resolve_run(spec, name="demo")
    text = json.dumps(run.to_json())
    plan = build_launch_plan(run, {}, HERE, RunTarget(run_dir, {"spec.resolved.json": text}))
    write_run_dir(plan)
    written = (run_dir / "spec.resolved.json").read_text()
    assert TOKEN not in written
    assert written == text
    assert ResolvedRun.from_json(json.loads(written)).spec.launch.env == {"HF_TOKEN": HIDDEN}
    assert run.spec.launch.env == {"HF_TOKEN": TOKEN}


@Attempt(
    "S21",
    "a secret that is a word of the run: `MY_TOKEN: llama`",
    "every `llama` of `spec.resolved.json` was withheld",
    "the values that ranks train with stay",
)
def test_a_secret_that_is_a_word(run_dir: Path) -> None:
    model = {"config": {"model_type": "llama"}}
    spec = RunSpec.model_validate({"model": model, "launch": {"num_gpus": 2, "env": {"MY_TOKEN": "llama"}}})
    run = resolve_run(spec, name="demo")
    documents = {"spec.resolved.json": json.dumps(run.to_json()), "ds_config.json": '{"a": "llama"}'}
    write_run_dir(build_launch_plan(run, {}, HERE, RunTarget(run_dir, documents)))
    read = ResolvedRun.from_json(json.loads((run_dir / "spec.resolved.json").read_text()))
    assert read.spec.model.config == model["config"]
    assert read.spec.launch.env == {"MY_TOKEN": HIDDEN}
    assert (run_dir / "ds_config.json").read_text() == documents["ds_config.json"]


@pytest.mark.parametrize(
    "env",
    [
        attempt_param(
            Attempt("S22", "a token in braces, in the line that a finding quotes", "printed", "as many `*`"),
            f"{{HF_TOKEN: {TOKEN}, B: '1'}}",
        ),
        attempt_param(
            Attempt("S23", "a password with blanks in a line that a finding quotes", "printed", "as many `*`"),
            f"\n    MY_PASSWORD: {TOKEN}, {TOKEN}",
        ),
        attempt_param(
            Attempt("S24", "a quoted password in a line that a finding quotes", "printed", "as many `*`"),
            f'{{MY_PASSWORD: "a, }} {TOKEN}"}}',
        ),
    ],
)
def test_quoted_lines(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SPEC + f"launch:\n  num_gpus: 1\n  env: {env}\n")
    for command in (("validate-config",), ("launch", "--dry-run"), ("launch", "--dry-run", "--format", "json")):
        text = run_command(*command, "s.yaml").text
        assert TOKEN not in text
        assert "SE003" in text
        assert "*" * len(TOKEN) in text


@Attempt("S25", "`--set launch.env.HF_TOKEN=...`, which a finding quotes", "printed twice", "as many `*`")
def test_quoted_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SPEC)
    text = run_command("validate-config", "s.yaml", "--set", f"launch.env.HF_TOKEN={TOKEN}").text
    assert TOKEN not in text
    assert "SE003" in text


@pytest.mark.parametrize(
    "error",
    [
        attempt_param(
            Attempt("S26", "the ops of a run on several hosts cannot be compiled", "`secrets.json` stayed", "removed"),
            UserError([]),
        ),
        attempt_param(
            Attempt("S27", "Ctrl-C while the ops of several hosts compile", "`secrets.json` stayed", "removed"),
            SignalInterrupt(signal.SIGINT),
        ),
    ],
)
def test_nothing_started(error: BaseException, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(launch_runner, "_build_ops", fail)
    plan = planned(run_dir, ("a", 2), ("b", 2))
    write_run_dir(plan)
    assert (run_dir / "secrets.json").is_file()
    run = resolve_run(RunSpec.model_validate({"zero": {"stage": 3}}), name="demo")
    with contextlib.suppress(UserError):
        launch_runner.run_launch(plan, run, HERE.scripts, Mock())
    assert not (run_dir / "secrets.json").exists()


@Attempt(
    "S28",
    "`deepspeed.flops_profiler.output_file: /home/me/.bashrc`",
    "the file is overwritten by the profile",
    "the profile is in the run directory, under that name",
)
@pytest.mark.parametrize("name", ["/home/me/.bashrc", "../../.bashrc", "x/.bashrc", ".bashrc"])
def test_profile(run_dir: Path, name: str) -> None:
    config = with_flops_profiler_output({"flops_profiler": {"enabled": True, "output_file": name}}, run_dir)
    assert config["flops_profiler"]["output_file"] == str(run_dir / "profile" / ".bashrc")
    odd = with_flops_profiler_output({"flops_profiler": {"enabled": True, "output_file": ".."}}, run_dir)
    assert Path(odd["flops_profiler"]["output_file"]).parent == run_dir / "profile"
