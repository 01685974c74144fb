# SPDX-License-Identifier: Apache-2.0
"""A question to ranks: processes forked from this one, a group by gloo through a file, which compile nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch

from harness.errors import UserError
from harness.runtime.model_behavior import first_line

_SECONDS = 60
_OF_MACHINE = r"gloo|^killed|DistNetworkError|DistStoreError|connection (refused|reset|closed)|timed out"
_GRACE_SECONDS = 2
"""For other ranks, once one has ended with an error."""


def ask_ranks(action: Callable[[int], dict[str, Any]], ranks: int, folder: Path) -> list[dict[str, Any]]:
    """The answer of each rank. Raises RankError where one raised or was killed, MachineError where only this machine is
    to blame.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pids = {_fork(action, rank, ranks, folder): rank for rank in range(ranks)}
    deadline = time.monotonic() + _SECONDS
    while pids:
        for pid in list(pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                rank = pids.pop(pid)
                if "error" in _read(folder, rank):
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if pids and time.monotonic() > deadline:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            break
        time.sleep(0.005)
    answers = [_read(folder, rank) for rank in range(ranks)]
    error = find_error(answers)
    if error:
        raise RankError(error)
    return answers


class RankError(Exception):
    """The model, or what this program does to it, ended a rank."""


class MachineError(Exception):
    """Ranks that ended for a reason that has nothing to do with their model."""


def find_error(answers: list[dict[str, Any]]) -> str:
    """The first error of the model, empty without one. Raises MachineError where all are about a peer, the network of
    this machine or its time.
    """
    errors = [str(answer["error"]) for answer in answers if "error" in answer]
    own = [error for error in errors if not re.search(_OF_MACHINE, error, re.IGNORECASE)]
    if errors and not own:
        raise MachineError(errors[0])
    return next(iter(own), "")


def _fork(action: Callable[[int], dict[str, Any]], rank: int, ranks: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    answer: dict[str, Any]
    try:
        log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _join(rank, ranks, folder)
        answer = action(rank)
    except UserError as error:
        answer = {"error": error.findings[0].message}
    except BaseException as error:  # what a model's code or a release of DeepSpeed raises is the answer
        answer = {"error": f"{type(error).__name__}: {first_line(error)}"}
    finally:
        with contextlib.suppress(OSError, TypeError):
            (folder / f"{rank}.part").write_text(json.dumps(answer))
            (folder / f"{rank}.part").rename(folder / f"{rank}.json")
        os._exit(0)


def _join(rank: int, ranks: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    deepspeed.ops.__compatible_ops__.clear()  # else its back end would compile one now
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks)
    deepspeed.init_distributed("gloo", verbose=False, auto_mpi_discovery=False)


def _read(folder: Path, rank: int) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / f"{rank}.json").read_text()))
    except (OSError, ValueError):
        return {"error": f"killed after {_SECONDS} s or by its peer's end"}
