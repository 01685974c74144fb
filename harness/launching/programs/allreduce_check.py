# SPDX-License-Identifier: Apache-2.0
"""An all-reduce over all ranks before any training: `allreduce_worker.py` under the `deepspeed` launcher, as in a run.

ssh and a connection to one port show neither that collectives work nor how fast they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.findings import Finding, Fix
from harness.launching.hosts.local_host import LocalHost
from harness.launching.process.processes import find_run_processes, kill_all
from harness.launching.setup.launch_plan import LaunchPlan, Network, RunTarget, build_launch_plan
from harness.run.resolved_run import ResolvedRun
from harness.spec.hostfile import hostfile_text

MARK = "HARNESS-ALLREDUCE "
RANK_TIMEOUT_SECONDS = 90.0
_STARTUP_SECONDS = 60.0
"""The limit for launcher, Python and torch to start, in addition to the time of the ranks."""
_MAX_LINES = 3


@dataclass(frozen=True, slots=True)
class AllReduceTiming:
    """One tensor size: bytes, seconds per all-reduce, bytes per second over the slowest link."""

    bytes: int
    seconds: float
    bus: float


@dataclass(frozen=True, slots=True)
class AllReduceResult:
    """The result; without `sizes` the all-reduce failed, and `words` has the last lines of the output."""

    world: int = 0
    backend: str = ""
    right: bool = False
    hosts: tuple[str, ...] = ()
    sizes: tuple[AllReduceTiming, ...] = ()
    words: str = ""


def run_allreduce(
    run: ResolvedRun, config: Mapping[str, Any], here: LocalHost, network: Network | None
) -> AllReduceResult:
    """Start the ranks, wait, and kill those that are left. Leaves no file, and no process on other hosts for long."""
    with tempfile.TemporaryDirectory(prefix="harness-allreduce-") as scratch:
        folder = Path(scratch)
        program = (str(here.scripts / "allreduce_worker.py"), "--seconds", str(RANK_TIMEOUT_SECONDS))
        plan = build_launch_plan(run, config, here, RunTarget(folder, {}), network, program=program)
        for name in ("deepspeed.env", "hostfile"):
            text = plan.files().get(name) or (hostfile_text(run.cluster) if run.cluster else "")
            (folder / name).write_text(text, encoding="utf-8")
        return _run_launcher(plan)


def _run_launcher(plan: LaunchPlan) -> AllReduceResult:
    child = subprocess.Popen(  # noqa: S603
        plan.argv,
        cwd=plan.cwd,
        env=plan.environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    out = b""
    try:
        out, _ = child.communicate(timeout=RANK_TIMEOUT_SECONDS + _STARTUP_SECONDS)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)  # DeepSpeed's own handler sends `pkill` to the other hosts
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, _ = child.communicate(timeout=5.0)
    finally:
        kill_all(lambda: find_run_processes(plan.run_dir, child.pid), 0.5)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    return parse_output(out.decode("utf-8", "replace"), plan.world_size)


def parse_output(out: str, world: int) -> AllReduceResult:
    """The result in the output of the ranks; pdsh writes the name of the host before each line."""
    for line in out.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            body = json.loads(text)
            sizes = tuple(AllReduceTiming(int(r["bytes"]), float(r["seconds"]), float(r["bus"])) for r in body["sizes"])
            hosts = tuple(map(str, body["hosts"]))
            return AllReduceResult(int(body["world"]), str(body["backend"]), bool(body["right"]), hosts, sizes)
    return AllReduceResult(world, words=_last_error_lines(out.splitlines()))


def _last_error_lines(lines: Sequence[str]) -> str:
    errors = [line.strip() for line in lines if "Error" in line or "rror:" in line] or [x.strip() for x in lines]
    return " / ".join(line[:200] for line in errors[-_MAX_LINES:] if line) or "nothing was printed"


def allreduce_findings(result: AllReduceResult) -> list[Finding]:
    """HO027 when the all-reduce failed or gave a wrong sum."""
    if result.sizes and result.right:
        return []
    if result.sizes:
        message = f"an all-reduce over {result.world} ranks gave a wrong sum"
        note = "a device, its memory or a network card is broken"
    else:
        message = f"an all-reduce over {result.world} ranks did not finish"
        note = result.words
    fix = Fix("set NCCL_DEBUG=INFO in `launch.env` and try again; leave hosts out with `--exclude` until it works")
    return [Finding("HO027", "error", message, notes=(note,), fix=fix)]
