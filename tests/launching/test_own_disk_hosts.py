# SPDX-License-Identifier: Apache-2.0
"""The run directory on hosts that share no disk: the real writer behind a stand-in for ssh, which gives each host a
folder of its own. Needs nothing; seconds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.errors import ExitCode, UserError
from harness.launching.hosts.local_host import workers_folder
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise import own_disks

SSH = """\
import base64, json, os, shlex, sys, time
place = sys.argv.index("--")
host, words = sys.argv[place + 1], shlex.split(sys.argv[place + 2])[1:]
if host == "silent":
    time.sleep(60)
if host == "dead":
    print("ssh: connect to host dead port 22: No route to host", file=sys.stderr)
    sys.exit(255)
request = json.loads(base64.urlsafe_b64decode(words[-1]))
request["run_dir"] = os.environ["DISKS"] + "/" + host + request["run_dir"]
words[-1] = base64.urlsafe_b64encode(json.dumps(request).encode()).decode()
os.execv(words[0], words)
"""


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disks of the hosts, by name; `full` has a file where its disk should be."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{SSH}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DISKS", str(tmp_path / "disks"))
    (tmp_path / "disks").mkdir()
    (tmp_path / "disks" / "full").write_text("")
    return tmp_path / "disks"


def plan(tmp_path: Path, *hosts: str, shared_disk: bool = False) -> LaunchPlan:
    run_dir = tmp_path / "run"
    (run_dir / "status").mkdir(parents=True, exist_ok=True)
    (run_dir / "launch.json").write_text('{"name": "a"}')
    (run_dir / "verdict.json").write_text("{}")
    made = tuple(HostPlan(name, (rank,), (), name == "here") for rank, name in enumerate(hosts))
    return LaunchPlan("a", run_dir, tmp_path, (), made, False, 1, (), {}, shared_disk=shared_disk)


def test_every_other_host_gets_the_files_that_ranks_read(tmp_path: Path, disks: Path) -> None:
    made = plan(tmp_path, "here", "a", "b")
    old = disks / f"a{made.run_dir}" / "status" / "rank-00001.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    own_disks.copy_run_dir(made, workers_folder())
    for host in ("a", "b"):
        copy = disks / f"{host}{made.run_dir}"
        assert (copy / "launch.json").read_text() == '{"name": "a"}'
        assert {path.name for path in copy.iterdir()} == {"launch.json", "logs", "status", "checkpoints"}
    assert not old.exists()
    assert not (disks / "here").exists()


def test_each_host_that_cannot_is_one_finding(tmp_path: Path, disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as refused:
        own_disks.copy_run_dir(plan(tmp_path, "here", "a", "full", "dead"), workers_folder())
    full, dead = refused.value.findings
    assert refused.value.code is ExitCode.PREFLIGHT
    monkeypatch.setattr(own_disks, "_SECONDS", 1.0)
    with pytest.raises(UserError) as refused:
        own_disks.copy_run_dir(plan(tmp_path, "here", "full", "silent"), workers_folder())
    _, silent = refused.value.findings  # `full` may take longer than that, too
    assert {(f.gate, f.key) for f in (full, dead, silent)} == {("EN058", "launch.output_dir")}
    assert full.message.endswith("cannot be created on full: not a directory")
    assert dead.message.endswith("on dead: ssh: connect to host dead port 22: No route to host")
    assert silent.message.endswith("on silent: no answer within 1 s")
    assert [f.fix.title.split()[:2] for f in (full, dead) if f.fix] == [["give", "full"], ["see", "that"]]


def test_without_ssh_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="ssh cannot be started"):
        own_disks.copy_run_dir(plan(tmp_path, "here", "a"), workers_folder())


def test_a_shared_disk_needs_no_copy(tmp_path: Path, disks: Path) -> None:
    own_disks.copy_run_dir(plan(tmp_path, "here", "full", shared_disk=True), workers_folder())
    assert [path.name for path in disks.iterdir()] == ["full"]
