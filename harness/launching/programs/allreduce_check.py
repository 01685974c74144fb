"""A sum over all ranks before any training: `launch/allreduce.py` under the `deepspeed` launcher, as a run would start.

What ssh and a connection to one port cannot tell: whether the collectives find each other, and how fast they are.
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
from harness.launching.setup.launch_plan import LaunchPlan, Network, RunTarget, build_launch_plan, hostfile_text
from harness.plan.resolved_run import ResolvedRun

MARK = "HARNESS-ALLREDUCE "
RANK_TIMEOUT_SECONDS = 90.0
_STARTUP_SECONDS = 60.0
"""How long launcher, Python and torch may take to come up, beyond the time that the ranks have."""
_MAX_LINES = 3


@dataclass(frozen=True, slots=True)
class AllReduceTiming:
    """One size of tensor: bytes, seconds a sum, bytes a second over the slowest link."""

    bytes: int
    seconds: float
    bus: float


@dataclass(frozen=True, slots=True)
class AllReduceResult:
    """What came of it; without `sizes` there was no sum, and `words` says what was heard instead."""

    world: int = 0
    backend: str = ""
    right: bool = False
    hosts: tuple[str, ...] = ()
    sizes: tuple[AllReduceTiming, ...] = ()
    words: str = ""


def run_allreduce(
    run: ResolvedRun, config: Mapping[str, Any], here: LocalHost, network: Network | None
) -> AllReduceResult:
    """Start the ranks, wait, end whatever is left. Leaves nothing here, and nothing runs longer than its time there."""
    with tempfile.TemporaryDirectory(prefix="harness-allreduce-") as scratch:
        folder = Path(scratch)
        plan = build_launch_plan(run, config, here, RunTarget(folder, {}), network)
        for name in ("deepspeed.env", "hostfile"):
            text = plan.files().get(name) or (hostfile_text(run.cluster) if run.cluster else "")
            (folder / name).write_text(text, encoding="utf-8")
        return _run_launcher(plan, here)


def _run_launcher(plan: LaunchPlan, here: LocalHost) -> AllReduceResult:
    script = plan.argv.index(str(here.scripts / "train.py"))
    argv = [*plan.argv[:script], str(here.scripts / "allreduce.py"), "--seconds", str(RANK_TIMEOUT_SECONDS)]
    child = subprocess.Popen(  # noqa: S603
        argv,
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
    """What the ranks printed; pdsh writes the name of the host before each line."""
    for line in out.splitlines():
        _, mark, said = line.partition(MARK)
        if not mark:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            body = json.loads(said)
            sizes = tuple(AllReduceTiming(int(r["bytes"]), float(r["seconds"]), float(r["bus"])) for r in body["sizes"])
            hosts = tuple(map(str, body["hosts"]))
            return AllReduceResult(int(body["world"]), str(body["backend"]), bool(body["right"]), hosts, sizes)
    return AllReduceResult(world, words=_last_error_lines(out.splitlines()))


def _last_error_lines(lines: Sequence[str]) -> str:
    told = [line.strip() for line in lines if "Error" in line or "rror:" in line] or [x.strip() for x in lines]
    return " / ".join(line[:200] for line in told[-_MAX_LINES:] if line) or "nothing was printed"


def allreduce_findings(found: AllReduceResult) -> list[Finding]:
    """HO027 when there was no sum, or a wrong one."""
    if found.sizes and found.right:
        return []
    if found.sizes:
        message = f"an all-reduce over {found.world} ranks gave a wrong sum"
        note = "a device, its memory or a network card is broken"
    else:
        message = f"an all-reduce over {found.world} ranks did not come to its end"
        note = found.words
    fix = Fix("set NCCL_DEBUG=INFO in `launch.env` and try again; leave hosts out with `--exclude` until it works")
    return [Finding("HO027", "error", message, notes=(note,), fix=fix)]
