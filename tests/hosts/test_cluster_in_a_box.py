# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: whether they are apart, and whether nothing of them is left. Needs root and sshd; 10 seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.boxes import SCRIPT, box_command, made_box, needs_root

pytestmark = pytest.mark.training


def traces(name: str) -> list[str]:
    """Namespaces, links, folders and processes that bear the name of a box."""
    spaces = subprocess.run(["ip", "netns", "list"], text=True, capture_output=True, check=True).stdout.split("\n")
    links = subprocess.run(["ip", "-br", "link"], text=True, capture_output=True, check=True).stdout.split("\n")
    found = [line for line in [*spaces, *links] if line.startswith(f"{name}-")]
    found += [str(p) for p in Path("/run/cluster-in-a-box").glob(f"*{name}*")]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        found += [line] if f"cluster-in-a-box/{name}/" in line or f"--name {name} _host" in line else []
    return found


def test_it_says_that_it_needs_root():
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    text = SCRIPT.read_text()
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-", "up", "2"],
        input=text,
        text=True,
        capture_output=True,
        check=False,
        cwd="/",
        **nobody,
    )
    assert done.returncode == 1
    assert "needs root" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [("--name", "Box", "up", "1"), ("--name", "a/b", "down"), ("--name", "toolonganame", "down")]
)
def test_a_name_is_letters_and_digits(words):
    done = subprocess.run([sys.executable, str(SCRIPT), *words], text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "is no name for a box" in done.stderr


@needs_root
@pytest.mark.parametrize("count", ["0", "-1", "65"])
def test_a_number_of_hosts_has_bounds(count):
    done = box_command("never", "up", count)
    assert done.returncode in (1, 2)
    assert not traces("never")


@needs_root
def test_hosts_are_apart_and_a_cut_one_is_silent(tmp_path):
    mine = tmp_path / "home" / ".ssh"
    mine.mkdir(parents=True)
    (mine / "config").write_text(f"Host *\n  ProxyCommand touch {tmp_path}/marker\n")
    with made_box(2, "a") as box:
        home = box.environ(HOME=str(tmp_path / "home"))
        for host in (1, 2):
            words = [
                "ssh",
                box.address(host),
                "hostname; hostname -I; echo > /dev/shm/mine; ls /dev/shm; ls /proc | grep -c '^[0-9]'",
            ]
            lines = subprocess.run(words, env=home, text=True, capture_output=True, check=True).stdout.split("\n")
            assert lines[:3] == [f"box-{host}", f"{box.address(host)} ", "mine"]
            assert int(lines[3]) < 20  # a process table of its own
        ping = ["ssh", "-o", "ConnectTimeout=1", box.address(2), "true"]
        assert box.on(1, *ping, check=False, env=home).returncode == 0
        assert box_command(box.name, "cut", "2").returncode == 0
        assert box.on(1, *ping, check=False, env=home).returncode == 255
        assert box_command(box.name, "heal", "2").returncode == 0
        assert box.on(1, *ping, check=False, env=home).returncode == 0
        again = box_command(box.name, "up", "2")
        assert (again.returncode, "is up already" in again.stdout) == (0, True)
        assert "there is no host 3" in box_command(box.name, "exec", "3", "--", "true").stderr
    assert traces(box.name) == []
    assert box_command(box.name, "down").returncode == 0  # once more does no harm
    assert not (tmp_path / "marker").exists()
    assert [p.name for p in mine.iterdir()] == ["config"]


@needs_root
def test_what_a_killed_up_left_is_in_nobodys_way():
    name = f"k{os.getpid() % 10**7}"
    for after in ("bridge", "a host"):
        making = subprocess.Popen([sys.executable, str(SCRIPT), "--name", name, "up", "2"], stdout=subprocess.DEVNULL)
        sign = f"{name}-br" if after == "bridge" else f"{name}-h1"
        end = time.monotonic() + 20
        while not Path("/sys/class/net", sign).exists() and time.monotonic() < end:
            time.sleep(0.005)
        making.send_signal(signal.SIGKILL)
        making.wait()
        assert traces(name)
    try:
        done = box_command(name, "up", "1")
        assert done.returncode == 0, done.stderr
    finally:
        box_command(name, "down")
    assert traces(name) == []
