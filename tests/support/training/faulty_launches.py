# SPDX-License-Identifier: Apache-2.0
"""Launches whose ranks and export are forked processes, which start in a second; no launcher of DeepSpeed.
`FaultyLaunches`: on a disk that fails, with the supervisor in this process; `KilledLaunches`: the command `harness
launch`, killed with or without its ranks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.launching.setup.environment import Variable
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise.launch_runner import LaunchResult, run_launch
from harness.locks import LockHolder
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.views.screen import Screen
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import ROOT
from tests.support.training.runtime_settings import spec

WORKERS = ROOT / "harness" / "workers"
STEPS = 4
_CLIENT = """
import json, os, sys, time
spool, script, ranks = sys.argv[1:4]
request = os.path.join(spool, str(os.getpid()))
with open(request + ".new", "w") as file:
    json.dump([script, int(ranks), sys.argv[4:], dict(os.environ)], file)
os.rename(request + ".new", request + ".request")
while not os.path.exists(request + ".answer"):
    time.sleep(0.02)
answer = json.load(open(request + ".answer"))
sys.stdout.write("".join(answer["output"]))
sys.exit(answer["code"])
"""
"""Asks the test's process to fork the ranks of a script, prints their output, and ends with the launcher's exit code."""


@dataclass
class FaultyLaunches:
    """Launches below `folder` of a run that saves at steps 2 and 4, the last, and exports."""

    forked: ForkedRanks
    folder: Path
    model: Path

    def run(self, name: str, fault: Mapping[str, str], **checkpoint: Any) -> LaunchResult:
        """Launch to the end; each rank and the export have the variables of the fault, where `{run}` is replaced."""
        sections = spec("zero2", self.model) | {
            "eval": {"eval_steps": None},
            "data": {"train": "builtin:python-docs", "max_length": 32, "eval_fraction": 0.0},
            "checkpoint": {"save_steps": 2, **checkpoint},
            "export": {"at_end": True},
        }
        sections["train"] |= {"max_steps": STEPS, "gradient_accumulation_steps": 1}
        run = resolve_run(RunSpec.model_validate_json(json.dumps(sections)), world_size=2)
        run_dir = self.folder / name / "run"
        for part in ("status", "logs", "checkpoints"):
            (run_dir / part).mkdir(parents=True)
        (run_dir / "spec.resolved.json").write_text(json.dumps(run.to_json()))
        (run_dir / "ds_config.json").write_text(json.dumps(dict(render_ds_config(run).config)))
        environ = {key: value.replace("{run}", str(run_dir)) for key, value in fault.items()}
        environ["HARNESS_SUPERVISOR"] = LockHolder.this_process().supervisor_id
        spool, scripts = self.folder / name / "spool", self.folder / name / "scripts"
        spool.mkdir()
        write_export_client(scripts, spool)
        ranks = (str(spool), str(WORKERS / "train_worker.py"), "2", "--run", str(run_dir))
        argv = (sys.executable, "-I", "-c", _CLIENT, *ranks)
        host = HostPlan("here", (0, 1), (Variable("PATH", os.environ["PATH"], ""),))
        plan = LaunchPlan(name, run_dir, scripts, argv, (host,), True, 2, (), {})
        with serve_forked(self.forked, spool, environ):
            return run_launch(plan, run, scripts, Screen("plain"))


@contextmanager
def serve_forked(forked: ForkedRanks, spool: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Fork what clients ask for, with their environment and these variables."""
    done = threading.Event()
    thread = threading.Thread(target=_answer_all, args=(forked, spool, environ, done))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _answer_all(forked: ForkedRanks, spool: Path, environ: Mapping[str, str], done: threading.Event) -> None:
    while not done.wait(0.02):
        for request in spool.glob("*.request"):
            script, ranks, arguments, own = json.loads(request.read_text())
            request.unlink()
            answer = forked.run(Path(script), *arguments, ranks=ranks, check=False, environ={**own, **environ})
            code = answer["codes"][answer["first"]]
            body = {"output": answer["output"], "code": code if code >= 0 else 256 + code}
            temporary = request.with_suffix(".part")
            temporary.write_text(json.dumps(body))
            temporary.rename(request.with_suffix(".answer"))


def write_export_client(scripts: Path, spool: Path) -> None:
    """The export worker of a launch that asks for a forked one."""
    scripts.mkdir()
    client = [str(spool), str(WORKERS / "export_worker.py"), "1"]
    builder = WORKERS / "op_builder.py"  # of an op that is not compiled yet
    (scripts / builder.name).write_text(f"import runpy; runpy.run_path({str(builder)!r}, run_name='__main__')")
    (scripts / "export_worker.py").write_text(f"import sys; sys.argv[1:1] = {client!r}\n{_CLIENT}")


_HARNESS = """
import sys
from dataclasses import replace
from pathlib import Path
from harness.launching.setup.prewarmed_launcher import PrewarmedLauncher
from harness.launching.supervise import launch_runner
spool, scripts, client = sys.argv[1:4]
del sys.argv[1:4]
PrewarmedLauncher.start = lambda *_: None
real = launch_runner.run_launch
def run_launch(plan, run, _, observer, *rest):
    at = next(i for i, word in enumerate(plan.argv) if word.endswith("train_worker.py"))
    argv = (sys.executable, "-I", "-c", client, spool, plan.argv[at], "2", *plan.argv[at + 1 :])
    return real(replace(plan, argv=argv), run, Path(scripts), observer)
launch_runner.run_launch = run_launch
from harness.cli.app import main
main()
"""
"""`harness`, of which only the launcher's command is another."""


@dataclass
class KilledLaunches:
    """`harness launch` of specs below `folder`, each start in a process of its own."""

    forked: ForkedRanks
    folder: Path
    process: subprocess.Popen[str] | None = None

    @contextmanager
    def serve(self, environ: Mapping[str, str]) -> Iterator[None]:
        """Until it is left, ranks can start."""
        spool = self.folder / "spool"
        spool.mkdir()
        write_export_client(self.folder / "scripts", spool)
        with serve_forked(self.forked, spool, environ):
            yield

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code of `harness launch ARGUMENTS`, negative for a signal, and what it printed."""
        own = [str(self.folder / "spool"), str(self.folder / "scripts"), _CLIENT]
        command = [sys.executable, "-P", "-c", _HARNESS, *own, "launch", *arguments]
        with (self.folder / "screen.txt").open("w+") as screen:
            self.process = subprocess.Popen(
                command, stdout=screen, stderr=subprocess.STDOUT, cwd=self.folder, text=True, start_new_session=True
            )
            code = self.process.wait(240)
            screen.seek(0)
            return code, screen.read()

    def kill(self, who: str, ranks: Sequence[int]) -> None:
        """SIGKILL for a `rank`, all `ranks`, the `supervisor` or `everything`."""
        assert self.process is not None
        own = self.process.pid
        for pid in {"rank": ranks[-1:], "ranks": ranks, "supervisor": [own], "everything": [own, *ranks]}[who]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
