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
from harness.launching.here import Here
from harness.launching.plan import LaunchPlan, Network, Target, hostfile_text, make_plan
from harness.launching.processes import end_all, of_run
from harness.plan.run import Run

MARK = "HARNESS-ALLREDUCE "
SECONDS = 90.0
_START_SECONDS = 60.0
"""How long launcher, Python and torch may take to come up, beyond the time that the ranks have."""
_MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class Size:
    """One size of tensor: bytes, seconds a sum, bytes a second over the slowest link."""

    bytes: int
    seconds: float
    bus: float


@dataclass(frozen=True, slots=True)
class AllReduce:
    """What came of it; without `sizes` there was no sum, and `words` says what was heard instead."""

    world: int = 0
    backend: str = ""
    right: bool = False
    hosts: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()
    words: str = ""


def try_allreduce(run: Run, config: Mapping[str, Any], here: Here, network: Network | None) -> AllReduce:
    """Start the ranks, wait, end whatever is left. Leaves nothing here, and nothing runs longer than its time there."""
    with tempfile.TemporaryDirectory(prefix="harness-allreduce-") as scratch:
        folder = Path(scratch)
        plan = make_plan(run, config, here, Target(folder, {}), network)
        for name in ("deepspeed.env", "hostfile"):
            text = plan.files().get(name) or (hostfile_text(run.cluster) if run.cluster else "")
            (folder / name).write_text(text, encoding="utf-8")
        return _carry_out(plan, here)


def _carry_out(plan: LaunchPlan, here: Here) -> AllReduce:
    script = plan.argv.index(str(here.scripts / "train.py"))
    argv = [*plan.argv[:script], str(here.scripts / "allreduce.py"), "--seconds", str(SECONDS)]
    child = subprocess.Popen(  # noqa: S603
        argv,
        cwd=plan.folder,
        env=plan.environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    out = b""
    try:
        out, _ = child.communicate(timeout=SECONDS + _START_SECONDS)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)  # DeepSpeed's own handler sends `pkill` to the other hosts
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, _ = child.communicate(timeout=5.0)
    finally:
        end_all(lambda: of_run(plan.run_dir, child.pid), 0.5)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    return read(out.decode("utf-8", "replace"), plan.world)


def read(out: str, world: int) -> AllReduce:
    """What the ranks printed; pdsh writes the name of the host before each line."""
    for line in out.splitlines():
        _, mark, said = line.partition(MARK)
        if not mark:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            body = json.loads(said)
            sizes = tuple(Size(int(r["bytes"]), float(r["seconds"]), float(r["bus"])) for r in body["sizes"])
            hosts = tuple(map(str, body["hosts"]))
            return AllReduce(int(body["world"]), str(body["backend"]), bool(body["right"]), hosts, sizes)
    return AllReduce(world, words=_last(out.splitlines()))


def _last(lines: Sequence[str]) -> str:
    told = [line.strip() for line in lines if "Error" in line or "rror:" in line] or [x.strip() for x in lines]
    return " / ".join(line[:200] for line in told[-_MOST_LINES:] if line) or "nothing was printed"


def findings(found: AllReduce) -> list[Finding]:
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
