# SPDX-License-Identifier: Apache-2.0
"""Runs jobs on the real DeepSpeed: imports torch, DeepSpeed and transformers once, then forks the ranks of each job.

Started by `judge.py`, as `python -m tests.conformance.server`: one JSON job a line on stdin, one JSON answer a line on
stdout. It judges nothing. No process group, thread or compute exists in the process that forks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.launching.hosts.local_host import find_free_port

GRACE_SECONDS = 1.5
"""After one rank has failed, how long the others may take to fail for reasons of their own."""
OPS = (
    "ShareMemCommBuilder",
    "FusedAdamBuilder",
    "CPUAdamBuilder",
    "PinMemoryBuilder",
    "AsyncIOBuilder",
    "CPUAdagradBuilder",
    "CPULionBuilder",
)


def prepare(ops: Path | None = None, builders: Sequence[str] = OPS) -> dict[str, Any]:
    """Import everything that ranks need and load the compiled ops (which compiles those that are not there yet).

    `ops` is the folder of another release's ops, which stand for those of this one; then ranks have no model of
    transformers, and it is not imported.
    """
    from harness.patches import cpuinfo_cache

    cpuinfo_cache.install_cpuinfo_cache()  # DeepSpeed asks for it in every rank, a second of CPU time each
    import torch

    torch.set_num_threads(1)
    from deepspeed.accelerator import get_accelerator

    missing = {}
    if ops:
        import deepspeed

        _take_ops(ops)
        from . import rank

        rank.warm_up(has_transformers=False)
        gc.freeze()  # a collection in a rank would copy all pages
        return {"ready": True, "torch": torch.__version__, "deepspeed": deepspeed.__version__, "missing_ops": {}}
    for name in builders:
        try:
            get_accelerator().create_op_builder(name).load(verbose=False)
        except Exception as error:  # a machine without libaio can still run the rest
            missing[name] = f"{type(error).__name__}: {error}"
    import transformers

    from . import rank  # imports the model classes that jobs use

    rank.warm_up()
    return {"ready": True, "torch": torch.__version__, "transformers": transformers.__version__, "missing_ops": missing}


def _take_ops(folder: Path) -> None:
    """Give DeepSpeed's builders the compiled modules of this folder: a module for each CPU op but those of NVMe."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    for name in ("fused_adam", "cpu_adam", "cpu_adagrad", "cpu_lion", "pin_memory", "deepspeed_shm_comm"):
        loader = importlib.machinery.ExtensionFileLoader(name, str(folder / name / f"{name}.so"))
        spec = importlib.util.spec_from_loader(name, loader)
        if spec is None:
            raise ImportError(name)
        OpBuilder._loaded_ops[name] = module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Fork the ranks, wait for them, and say what happened."""
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    began = time.monotonic()
    port = find_free_port()
    try:
        children = {_fork(job, folder, port, index): index for index in range(job["world"])}
        timed_out = _wait(children, folder, began + job.get("limit", 45))
        answer = _collect(job, folder, timed_out)
        if answer["outcome"] == "ran" and job.get("reference", True):
            answer["reference"] = _reference(job, answer, folder)
    finally:
        _clean(folder, port)
    answer["seconds"] = round(time.monotonic() - began, 2)
    return answer


def _fork(job: dict[str, Any], folder: Path, port: int, index: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        _redirect(folder / f"rank-{index}.log")
        world = job["world"]
        os.environ |= {
            "RANK": str(index),
            "LOCAL_RANK": str(index),
            "WORLD_SIZE": str(world),
            **({"LOCAL_SIZE": str(world)} if job.get("shared_memory", True) else {}),
            "CROSS_RANK": "0",
            "CROSS_SIZE": "1",
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        (folder / "work").mkdir(exist_ok=True)
        os.chdir(folder / "work")
        from . import rank

        code = rank.main(job, folder, index)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)


def _wait(children: dict[int, int], folder: Path, deadline: float) -> bool:
    """Reap the ranks; True when the deadline passed. Once one has failed, the others wait in collectives for ever."""
    alive = dict(children)
    failed_at: float | None = None
    timed_out = False
    while alive:
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                index = alive.pop(pid)
                (folder / f"rank-{index}.status").write_text(str(os.waitstatus_to_exitcode(status)))
                if status and failed_at is None:
                    failed_at = time.monotonic()
        now = time.monotonic()
        timed_out = now > deadline
        if alive and (timed_out or (failed_at is not None and now > failed_at + GRACE_SECONDS)):
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            for pid in alive:
                os.waitpid(pid, 0)
            return timed_out and failed_at is None
        time.sleep(0.01)
    return False


def _collect(job: dict[str, Any], folder: Path, timed_out: bool) -> dict[str, Any]:
    ranks = [_rank(folder, index) for index in range(job["world"])]
    failures = [r for r in ranks if "error" in r or r.get("signal")]
    # The first to fail tells the cause; what others say after it is that a peer has gone.
    failures.sort(key=lambda r: r.get("at", float("inf")))
    answer: dict[str, Any] = {"ranks": ranks}
    if failures:
        first = failures[0]
        answer["outcome"] = "fails"
        answer["phase"] = first.get("phase", "start")
        answer["error"] = first.get("error") or {"type": f"signal {first['signal']}", "message": _last(first["log"])}
    elif timed_out:
        answer["outcome"] = "hangs"
        answer["phase"] = ranks[0].get("phase", "start")
    elif any(r.get("left") for r in ranks):
        answer["outcome"] = "leaves"
        answer["phase"] = ranks[0].get("phase", "start")
    else:
        answer["outcome"] = "ran"
    for r in ranks:
        r["log"] = r["log"][-1500:] if failures or timed_out else ""
    return answer


def _rank(folder: Path, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {"rank": index}
    phase = folder / f"rank-{index}.phase"
    if phase.exists():
        result["phase"] = phase.read_text()
    report = folder / f"rank-{index}.json"
    if report.exists():
        result |= json.loads(report.read_text())
    status = folder / f"rank-{index}.status"
    code = int(status.read_text()) if status.exists() else None
    if code is not None and code < 0 and "error" not in result:
        result["signal"] = signal.Signals(-code).name
    result["killed"] = code is None
    log = folder / f"rank-{index}.log"
    result["log"] = log.read_text(errors="replace") if log.exists() else ""
    return result


def _last(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _reference(job: dict[str, Any], answer: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The same training in plain torch, in a process of its own."""
    out = folder / "reference.json"
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            _redirect(folder / "reference.log")
            from . import reference

            out.write_text(json.dumps(reference.train(job, answer, folder)))
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.waitpid(pid, 0)
    if out.exists():
        return json.loads(out.read_text())
    return {"error": (folder / "reference.log").read_text(errors="replace")[-1500:]}


def _clean(folder: Path, port: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shared = Path("/dev/shm")  # noqa: S108  where DeepSpeed's CPU all-reduce leaves its buffers
    for file in shared.glob(f"deepspeed_allreduce_buffer_*_{port}*"):
        file.unlink(missing_ok=True)


def main() -> None:
    # What libraries print must not mix with the answers: their stdout becomes stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    ops = Path(sys.argv[2]) if sys.argv[1:2] == ["--ops"] else None
    builders = sys.argv[2].split(",") if sys.argv[1:2] == ["--build"] else OPS
    answers.write(json.dumps(prepare(ops, builders)) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
