# SPDX-License-Identifier: Apache-2.0
"""Clusters in a box for the tests that need several hosts: made once a test run, faults put in and taken out. No tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch" / "cluster-in-a-box"
LACKING = [p for p in ("sshd", "ssh", "pdsh", "ip") if not shutil.which(p, path="/usr/sbin:/usr/bin:/sbin:/bin")]


NEEDS_ROOT = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(os.geteuid() == 0 and bool(LACKING), reason=f"needs {' '.join(LACKING)}"),
]
"""Skips where no box can be made; root without the programs is no excuse in CI, which installs them."""


def needs_root(test: Any) -> Any:
    """The same for one test."""
    for mark in NEEDS_ROOT:
        test = mark(test)
    return test


def box_command(name: str, *words: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """`cluster-in-a-box` for a box of this name."""
    command = [sys.executable, str(SCRIPT), "--name", name, *words]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=120, **kwargs)  # type: ignore[call-overload]


@dataclass(frozen=True)
class TheBox:
    """A box that is up."""

    name: str
    count: int

    @property
    def folder(self) -> Path:
        return Path("/run/cluster-in-a-box") / self.name

    def address(self, host: int) -> str:
        return (self.folder / "hostfile").read_text().splitlines()[host - 1].split()[0]

    def hostfile(self, file: Path, hosts: int, slots: int = 1) -> Path:
        file.write_text("".join(f"{self.address(h)} slots={slots}\n" for h in range(1, hosts + 1)))
        return file

    def environ(self, **more: str) -> dict[str, str]:
        """An environment in which `ssh` means the box's."""
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        inherited = os.environ.get("PYTHONPATH", "")
        return dict(os.environ) | {"PATH": path, "PYTHONPATH": f"{ROOT}:{inherited}".rstrip(":")} | more

    def on(self, host: int, *words: str, check: bool = True, **kwargs: object) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as if logged in there."""
        done = box_command(self.name, "exec", str(host), "--", *words, **kwargs)
        assert not check or done.returncode == 0, done.stderr
        return done

    def start_on(self, host: int, *words: str, **kwargs: object) -> subprocess.Popen[str]:
        """The same without waiting."""
        command = [sys.executable, str(SCRIPT), "--name", self.name, "exec", str(host), "--", *words]
        return subprocess.Popen(command, text=True, start_new_session=True, **kwargs)  # type: ignore[call-overload]

    def init_pid(self, host: int) -> int:
        """The first process of a host, as this machine counts; below its `/proc/PID/root` are the files of the host."""
        return int(json.loads((self.folder / "box.json").read_text())["pids"][host - 1])

    def processes(self, host: int) -> set[int]:
        """What runs on a host, as this machine counts, but for its first process and its sshd."""
        init = self.init_pid(host)
        command = ["ip", "netns", "pids", f"{self.name}-{host}"]
        pids = {
            int(word) for word in subprocess.run(command, text=True, capture_output=True, check=True).stdout.split()
        }
        return {pid for pid in pids - {init} if not _is_sshd_of(pid, init)}

    def kill_host(self, host: int) -> None:
        """As if its power failed: nobody hears of it again, and all that ran there is gone."""
        subprocess.run(["ip", "link", "set", f"{self.name}-h{host}", "down"], check=True)
        while pids := self.processes(host):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    @contextlib.contextmanager
    def mounted(self, host: int, what: Path, place: Path) -> Iterator[None]:
        """On one host alone, the file or folder `what` stands at `place`."""
        self.on(host, "mount", "--bind", str(what), str(place))
        try:
            yield
        finally:
            self.on(host, "umount", "-l", str(place))

    @contextlib.contextmanager
    def sshd(self, host: int, *lines: str) -> Iterator[None]:
        """On one host alone, more lines of sshd's configuration, such as `SetEnv` or `ForceCommand`."""
        config = self.folder / "hosts" / str(host) / "sshd_config"
        before = config.read_text()
        config.write_text(before + "".join(f"{line}\n" for line in lines))
        self._reload(host)
        try:
            yield
        finally:
            config.write_text(before)
            self._reload(host)

    def _reload(self, host: int) -> None:
        script = (
            "kill -HUP $(pgrep -o -x sshd); for i in $(seq 100); do ss -ltn | grep -q ':22 ' && exit; sleep 0.02; done"
        )
        self.on(host, "sh", "-c", f"sleep 0.05; {script}; sleep 0.1")


def _is_sshd_of(pid: int, init: int) -> bool:
    """Whether a process is the server that the first process of a host has started, or `unshare` around that process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return True  # gone
    return words[0] == "Z" or name == "unshare" or (name == "sshd" and int(words[1]) == init)


@contextlib.contextmanager
def made_box(count: int, letter: str = "t", *private: Path) -> Iterator[TheBox]:
    """A box of so many hosts, gone afterwards; each has a disk of its own at every `private` folder."""
    box = TheBox(f"{letter}{os.getpid() % 10**7}", count)
    done = box_command(box.name, "up", str(count), *(word for path in private for word in ("--private", str(path))))
    assert done.returncode == 0, done.stderr
    try:
        yield box
    finally:
        assert box_command(box.name, "down").returncode == 0
