# SPDX-License-Identifier: Apache-2.0
"""The client of `server.py`: `with Judge() as judge: judge.run(job)`. Imports no torch; decides nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.hostinfo.torch_extensions import VARIABLE, torch_extensions_dir

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def environment(overlay: Path | None = None) -> dict[str, str]:
    """One thread a rank, nothing from the network, and this interpreter's ninja in reach (another one would rebuild
    every op). `overlay` has another release of DeepSpeed, whose own ops would go to another folder.
    """
    other = {
        "PYTHONPATH": f"{overlay}{os.pathsep}{ROOT}",
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # old releases cannot load their own checkpoints otherwise
        VARIABLE: str(torch_extensions_dir().parent / "other-releases"),
    }
    return {
        **os.environ,
        VARIABLE: str(
            torch_extensions_dir()
        ),  # plain DeepSpeed would compile every op once more, in torch's own folder
        "WANDB_MODE": "disabled",  # it asks for an account where it happens to be installed
        "PYTHONPATH": str(ROOT),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_COMPILE_DISABLE": "1",  # Muon compiles its iteration: minutes, and the same numbers
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of compilers would be threads and processes in the forking one
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONOPTIMIZE": "",
        **(other if overlay else {}),
    }


class Memory:
    """Answers of earlier runs, by job: DeepSpeed need not be asked again when only our side has changed.

    Good for the same machine, DeepSpeed and runner; `python -m tests.conformance --answers FILE` uses it.
    """

    def __init__(self, judge: Judge, file: Path) -> None:
        self._judge, self._file = judge, file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._known: dict[str, dict[str, Any]] = dict(json.loads(line) for line in lines)
        self.remembered = 0

    def run(self, job: dict[str, Any], *, is_fresh: bool = False) -> dict[str, Any]:
        """The answer to this very job, from the file or from DeepSpeed. `is_fresh`: from DeepSpeed in any case."""
        key = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
        if key in self._known and not is_fresh:
            self.remembered += 1
            return self._known[key]
        answer = self._judge.run(job)
        if answer["outcome"] != "unknown":
            self._known[key] = answer
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, answer]) + "\n")
        return answer


class Judge:
    """A server process that runs one job at a time, under the DeepSpeed of `overlay` where one is named. It is started
    with the first job, where a `with` has not done so, and once more when it has died. `ops`: the builders of all ops
    that its jobs use, if not of `server.OPS`.
    """

    def __init__(self, log: Path | None = None, overlay: Path | None = None, ops: Sequence[str] = ()) -> None:
        self._log, self._overlay, self._ops = log, overlay, ops
        self._process: subprocess.Popen[str] | None = None
        self.versions: dict[str, Any] = {}

    def __enter__(self) -> Judge:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        stderr = self._log.open("a") if self._log else subprocess.DEVNULL
        options = ["--ops", str(torch_extensions_dir())] if self._overlay else []
        options += ["--build", ",".join(self._ops)] if self._ops else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.server", *options],
            cwd=ROOT,
            env=environment(self._overlay),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self.versions = self._read()

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """What DeepSpeed did with the job; see README.md for both shapes."""
        if self._process is None:
            self._start()
        process = self._process
        if process is None or process.stdin is None:
            raise RuntimeError("the server is not running")
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            return self._read()
        except (BrokenPipeError, EOFError) as error:
            self.close()
            self._start()
            return {"outcome": "unknown", "error": {"type": type(error).__name__, "message": "the server died"}}

    def _read(self) -> dict[str, Any]:
        process = self._process
        line = process.stdout.readline() if process is not None and process.stdout is not None else ""
        if not line:
            raise EOFError("the server ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the server; its ranks have ended with the job."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
