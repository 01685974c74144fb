# SPDX-License-Identifier: Apache-2.0
"""Chains of launches on hosts in a box, each with a disk of its own, of which one is killed: its link goes down, all its
processes get SIGKILL and its disk is emptied. The next start takes any two hosts and resumes from an object store. Needs
root, sshd, pdsh. No tests here.
"""

# ruff: noqa: S311  (seeded on purpose)

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.boxes import TheBox, box_command
from tests.support.object_store import KEY_ID, SECRET

from .attempt import Report, find_torn, read_rows
from .chain import SAME, Plan
from .spec import write_spec
from .stored import BUCKET, StoreWatch, download, is_uploading, stored_steps

START_SECONDS = 300.0
END_SECONDS = 120.0
"""The others notice after 20 s that a host is silent, and after 30 s that the launching one is."""


@dataclass(frozen=True, slots=True)
class HostKill:
    """The first (`launching host`) or the second host (`host`) is killed, at the `number`-th PUT of an `upload` or after
    so many steps.
    """

    target: str
    moment: str
    number: int

    @staticmethod
    def draw(drawn: random.Random, target: str) -> HostKill:
        moment = drawn.choice(("upload", "step"))
        return HostKill(target, moment, drawn.randint(1, 30 if moment == "upload" else 20))


def draw(count: int, seed: int) -> list[HostKill]:
    """So many kills, half of them of the launching host."""
    drawn = random.Random(seed)
    return [HostKill.draw(drawn, ("host", "launching host")[i % 2]) for i in range(count)]


@dataclass(slots=True)
class HostChain:
    """One training on a box; as `StoreChain`. `folder` has the spec, and `runs` in it is on each host's own disk."""

    name: str
    plan: Plan
    case: str
    folder: Path
    box: TheBox
    reference: Report
    ranks: Any
    watch: StoreWatch
    tell: Callable[[str], None]
    reports: list[Report] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    prefix: str = ""

    def run(self, left: list[HostKill]) -> None:
        """Start and kill until the training is over; kills that came to be are taken off `left`."""
        spec = write_spec(self.folder, steps=self.plan.steps, case=self.case, port=self.plan.port)
        drawn = random.Random(f"{self.plan.seed} {self.name}")
        newest: int | None = None
        while True:
            if newest is None:
                self.prefix = f"{self.name}-{len(self.reports)}"
            report = self._start(spec, left[0] if left else None, newest, drawn)
            if report.kill is not None:
                left.pop(0)
            if report.completed:
                break
            if report.kill is None:
                raise RuntimeError(f"it ended by itself: {report.output[-3000:]}")
            steps, torn = stored_steps(self.watch.server, self.prefix)
            self.wrong += [f"{self.name} start {len(self.reports)}: {text}" for text in torn]
            newest = steps[0] if steps else None
        self._check_end()
        for host in range(1, self.box.count + 1):
            self._empty_disk(host)

    def _start(self, spec: Path, kill: HostKill | None, newest: int | None, drawn: random.Random) -> Report:
        hosts = drawn.sample(range(1, self.box.count + 1), 2)
        self.watch.prefix = self.prefix
        launch = self._launch(spec, hosts, newest)
        victim = hosts[0] if kill is not None and kill.target == "launching host" else hosts[1]
        is_killed = uploading = False
        try:
            if kill is not None:
                is_killed, uploading = self._strike(launch, kill, hosts[0], victim)
            code = launch.wait(END_SECONDS if is_killed else START_SECONDS)
        finally:
            launch.kill()
            self.watch.reset()
        run_dir = self._run_dir(hosts[0])
        output = (self.folder / "screen.txt").read_text(errors="replace")
        assert run_dir is not None, output
        report = Report(kill if is_killed else None, run_dir, None, code, mid_save=uploading, output=output)
        report.wrong += self._left_processes(hosts) + find_torn(run_dir)
        rows = read_rows(run_dir)
        report.steps = {int(row["step"]): float(row["loss"]).hex() for row in rows if row["type"] == "step"}
        report.completed = any(row["type"] == "end" and row["state"] == "completed" for row in rows)
        resumed = next((int(row["start_step"]) for row in rows if row["type"] == "run"), None)
        if resumed is not None and resumed != (newest or 0):
            report.wrong.append(f"it resumed from {resumed}, the newest complete one in the store is {newest}")
        report.resumed_from = f"step-{resumed:08d}" if resumed else None
        if not is_killed and code != 0:
            report.wrong.append(f"nobody killed it and it ended with code {code}")
        for step, loss in report.steps.items():
            if loss != self.reference.steps.get(step):
                report.wrong.append(f"loss of step {step} is {loss}, should be {self.reference.steps.get(step)}")
        if is_killed:
            for host in hosts:
                self._empty_disk(host)
            self._heal(victim)
        self.reports.append(report)
        self.wrong += [f"{self.name} start {len(self.reports)}: {text}" for text in report.wrong]
        self.tell(f"{self.name} {len(self.reports)} on {hosts}: {report.to_json()}")
        return report

    def _launch(self, spec: Path, hosts: Sequence[int], newest: int | None) -> subprocess.Popen[str]:
        url = f"s3://{BUCKET}/{self.prefix}"
        hostfile = self.folder / "hosts"
        hostfile.write_text("".join(f"{self.box.address(host)} slots=1\n" for host in hosts))
        credentials = self.folder / "credentials"
        credentials.write_text(f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")
        variables = {name: value for name, value in self.watch.server.environment().items() if "KEY" not in name}
        variables |= {"AWS_SHARED_CREDENTIALS_FILE": str(credentials), "OMP_NUM_THREADS": "1"}
        settings = {f"launch.env.{name}": f'"{value}"' for name, value in variables.items()}
        settings |= {"launch.num_gpus": "null", "launch.shared_disk": "false", "checkpoint.upload_to": url}
        command = [sys.executable, "-m", "harness", "launch", str(spec), "--hostfile", str(hostfile)]
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command += ["--resume", url if newest is not None else "never"]
        with (self.folder / "screen.txt").open("w") as screen:
            environ = self.box.environ()
            return self.box.start_on(hosts[0], *command, env=environ, stdout=screen, stderr=subprocess.STDOUT)

    def _run_dir(self, host: int) -> Path | None:
        """The newest run directory on the disk of a host, as this machine sees it."""
        found = sorted((self._root(host) / "runs").glob("killed-2*"))
        return found[-1] if found else None

    def _root(self, host: int) -> Path:
        return Path(f"/proc/{self.box.init_pid(host)}/root{self.folder}")

    def _strike(self, launch: subprocess.Popen[str], kill: HostKill, first: int, victim: int) -> tuple[bool, bool]:
        """(whether the host was killed, whether a checkpoint was being uploaded then)."""

        def kill_host() -> bool:
            self.box.kill_host(victim)
            return True

        self.watch.expect("PUT", kill.number if kill.moment == "upload" else sys.maxsize, kill_host)
        end = time.monotonic() + START_SECONDS
        while launch.poll() is None and time.monotonic() < end:
            if self.watch.has_acted.is_set():
                break
            if kill.moment == "step" and self._num_steps(first) >= kill.number and kill_host():
                self.watch.has_acted.set()
            time.sleep(0.02)
        has_acted = self.watch.has_acted.wait(1.0)  # a launch ends within its own kill
        return has_acted, has_acted and is_uploading(self.watch.server, self.prefix)

    def _num_steps(self, host: int) -> int:
        run_dir = self._run_dir(host)
        return sum(row["type"] == "step" for row in read_rows(run_dir)) if run_dir is not None else 0

    def _left_processes(self, hosts: Sequence[int]) -> list[str]:
        """Processes of the run that are left on any of the hosts; they get a moment to notice. A session of sshd, whose
        command has ended, waits longer for a client without a link; the harness cannot end it.
        """
        end = time.monotonic() + 45.0
        while left := {h: names for h in hosts if (names := self._names_of_processes(h))}:
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        return [f"processes {names} are left on host {host}" for host, names in left.items()]

    def _names_of_processes(self, host: int) -> dict[int, str]:
        names = {}
        for pid in sorted(self.box.processes(host)):
            with contextlib.suppress(OSError):  # gone
                command = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
                if not command.startswith(("sshd: ", "sshd-session: ")):
                    names[pid] = command[:200]
        return names

    def _empty_disk(self, host: int) -> None:
        for entry in (self._root(host) / "runs").iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _heal(self, host: int) -> None:
        done = box_command(self.box.name, "heal", str(host))
        assert done.returncode == 0, done.stderr

    def _check_end(self) -> None:
        name = self.name
        stored, torn = stored_steps(self.watch.server, self.prefix)
        self.wrong += [f"{name}: {text}" for text in torn]
        if not stored or stored[0] != self.plan.steps:
            self.wrong.append(f"{name}: the newest checkpoint in the store is {stored[:1]}, the last step is not there")
            return
        copy = download(self.watch.server, self.prefix, stored[0], self.folder / f"{self.name}-stored")
        (own,) = (self.reference.run_dir / "checkpoints").glob("step-*")
        answer = self.ranks.run(SAME, str(copy), str(own), ranks=1, check=False)
        if answer["codes"] != [0]:
            self.wrong.append(f"{name}: the final state in the store differs: {answer['output'][0][-500:]}")
