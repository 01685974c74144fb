# SPDX-License-Identifier: Apache-2.0
"""Several ranks without the launcher: a process that has imported torch, DeepSpeed and transformers once forks them.

`ForkedRanks.run(script, *args, ranks=2)` starts in a second where the launcher needs ten. The environment is the
launcher's (RANK, WORLD_SIZE, MASTER_ADDR ...). What is tested of launching itself goes through the real launcher.
`ForkedRanks(imports="transformers")` leaves DeepSpeed for the ranks to import, for what is tested of that import.
`ForkedRanks(imports="simulation")` loads the simulated device first: each rank may simulate a run, once.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.launching.hosts.local_host import find_free_port
from harness.launching.ops.build_cache import find_op_folders
from tests.support.training.runtime_helpers import ROOT, rank_environment, remove_shared_buffers

GRACE_SECONDS = 3.0
"""After one rank has failed, how long the others may take to fail for reasons of their own."""


WARM = (
    "safetensors.torch",
    "transformers.integrations",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama", "mixtral", "qwen2")),
)
WARM_DEEPSPEED = (
    "deepspeed.pipe",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)
OPS = (
    "cpu_adam",
    "cpu_adam_one_pass",
    "fused_adam",
    "pin_memory",
    "async_io",
    "cpu_lion",
    "cpu_adagrad",
)
HARNESS = ("harness.runtime.export", "harness.runtime.worker")
"""Patches nothing while it is imported, so that a script may still measure bare DeepSpeed."""


class ForkedRanks:
    """The process that forks, started at the first use."""

    def __init__(
        self, imports: str = "deepspeed", preload: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        """`preload`: a library for LD_PRELOAD; `environ`: variables of the process that forks, before it imports."""
        self._process: subprocess.Popen[str] | None = None
        self._imports = imports
        self._environ = dict(environ or {}) | ({} if preload is None else {"LD_PRELOAD": str(preload)})

    def run(
        self,
        script: Path,
        *arguments: str,
        ranks: int = 2,
        timeout: float = 240,
        check: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a script on so many ranks: {"codes": [exit code a rank, negative: signal], "output": [text a rank]}.

        `check`: fail the test with the output of the first rank that failed.
        """
        job = {"script": str(script), "arguments": arguments, "ranks": ranks, "limit": timeout}
        job["environ"] = dict(environ or {})
        answer = self._ask(job)
        if check:
            bad = [rank for rank, code in enumerate(answer["codes"]) if code]
            assert not bad, f"ranks {bad}, codes {answer['codes']}\n" + answer["output"][answer["first"]][-4000:]
        return answer

    def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self._imports],
                env=rank_environment() | self._environ,
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "the process that forks the ranks has gone"
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


@cache
def share_ranks() -> ForkedRanks:
    """The one process for tests outside of `tests/training` that need no other: it takes 10 s of CPU to get warm."""
    ranks = ForkedRanks()
    atexit.register(ranks.close)
    return ranks


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    _import()
    _freeze()
    for line in sys.stdin:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
    os._exit(0)  # an interpreter with all of torch takes seconds to take itself apart


def _import() -> None:
    """What every rank would import; no thread and no process group."""
    if sys.argv[-1] == "simulation":
        from harness.runtime.simulation.native_library import load_native_library

        load_native_library()
    if sys.argv[-1] != "transformers":
        _import_deepspeed()
    import torch

    torch.set_num_threads(1)
    for name in WARM:
        importlib.import_module(name)
    if sys.argv[-1] == "deepspeed":
        _prepare_engines()


def _prepare_engines() -> None:
    """What each rank would do once, most of a short run: load compiled ops, which asks the compiler and ninja whether
    they are up to date; ask which ops this machine can have; build the table of weights' names and the checks of specs.
    """
    import deepspeed.ops

    from harness.spec.run_spec import RunSpec
    from harness.workers.op_builder import get_builder

    for name in ("transformers.optimization", "torch.utils.cpp_extension"):  # with peft and setuptools, 350 modules
        importlib.import_module(name)
    for op in OPS:
        if any(any(folder.glob("*.so")) for folder in find_op_folders(torch_extensions_dir(), [op])):
            get_builder(op).load(verbose=False)
    # Two buffers of 33 MB a rank take a third of a short run, for one collective of tensor-parallel layers, which gloo
    # has, too. Ranks of the real launcher have them.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with contextlib.suppress(ImportError, AttributeError):  # an older transformers has no such table
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    RunSpec.model_rebuild()


def _import_deepspeed() -> None:
    from harness.patches.no_mlflow import import_deepspeed

    import_deepspeed()
    for name in WARM_DEEPSPEED:
        with contextlib.suppress(ImportError):  # an older DeepSpeed has fewer
            importlib.import_module(name)
    from deepspeed.accelerator import get_accelerator

    from harness.patches.lazy_compile import import_without_compile

    import_without_compile()
    get_accelerator()
    for name in HARNESS:
        importlib.import_module(name)


def _freeze() -> None:
    """Save all ranks what they would do again: digests of the patches' targets, and collections over all modules, a
    quarter of a second each, which runs and engines make. A run thaws at its end, which would end the saving.
    """
    if sys.argv[-1] != "transformers":  # then ranks import a DeepSpeed of their own
        from harness.patches.patch_registry import all_patches
        from harness.patches.targets import check_target, forget_modules

        for target in (target for patch in all_patches() for target in patch.targets):
            check_target(target)
        forget_modules()
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None


def _run(job: dict[str, Any]) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="forked-ranks-"))
    port = find_free_port()
    try:
        children = {_fork(job, folder, port, rank): rank for rank in range(job["ranks"])}
        codes, first = _wait(children, time.monotonic() + job["limit"])
        output = [(folder / f"{rank}.log").read_text(errors="replace") for rank in range(job["ranks"])]
    finally:
        remove_shared_buffers(port)
        shutil.rmtree(folder, ignore_errors=True)
    return {"codes": codes, "first": first, "output": output}


def _fork(job: dict[str, Any], folder: Path, port: int, rank: int) -> int:
    (folder / f"{rank}.log").touch()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        target = os.open(folder / f"{rank}.log", os.O_WRONLY)
        os.dup2(target, 1)
        os.dup2(target, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        ranks = str(job["ranks"])
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}
        os.environ |= {"LOCAL_WORLD_SIZE": ranks, "CROSS_RANK": "0", "CROSS_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **job["environ"]}
        sys.argv = [job["script"], *job["arguments"]]
        sys.path.insert(0, str(Path(job["script"]).parent))
        runpy.run_path(job["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # whatever a test's script raises is what the test wants to see
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(alive: dict[int, int], deadline: float) -> tuple[list[int], int]:
    """Exit codes by rank and the rank that failed first (0 if none). Once one has failed, others may wait for ever."""
    codes: dict[int, int] = {}
    failed: tuple[float, int] | None = None
    while alive:
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                rank = alive.pop(pid)
                codes[rank] = os.waitstatus_to_exitcode(status)
                if codes[rank] and failed is None:
                    failed = time.monotonic(), rank
        now = time.monotonic()
        if alive and (now > deadline or (failed and now > failed[0] + GRACE_SECONDS)):
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[rank] for rank in sorted(codes)], failed[1] if failed else 0


if __name__ == "__main__":
    _serve()
