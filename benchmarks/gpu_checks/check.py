# SPDX-License-Identifier: Apache-2.0
"""A check, and the process that measures for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

Figures = dict[str, Any]
State = Literal["PASS", "FAIL", "SKIP"]
T = TypeVar("T")
SEED = 7


@dataclass(frozen=True)
class Task:
    """One start of ranks for a check, as JSON on their command line. `fault`: `module:function` to call before."""

    check: str
    folder: str
    rehearse: bool
    ranks: int = 1
    mode: str = ""
    seconds: float = 120.0
    wire: str = "gloo"
    fault: str = ""

    def to_json(self) -> str:
        """The argument of `check_process`."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Ending:
    """Ranks that have ended: exit codes in rank order (negative: the signal), the figures of rank 0, the end of the
    output of the rank that failed first, and the seconds that all took.
    """

    codes: Sequence[int]
    figures: Figures
    output: str
    seconds: float


class Start:
    """Starts ranks for one check and waits for them; all its starts together have the seconds of the task."""

    def __init__(self, task: Task, start_ranks: Callable[[Task], Ending]) -> None:
        self.task, self._start_ranks = task, start_ranks
        self._deadline = time.monotonic() + task.seconds

    def __call__(self, mode: str = "", ranks: int | None = None) -> Ending:
        """The ending of so many ranks in this mode; the check's own number of ranks where it is left out."""
        left = max(1.0, self._deadline - time.monotonic())
        number = self.task.ranks if ranks is None else ranks
        return self._start_ranks(replace(self.task, mode=mode, ranks=number, seconds=left))


class RanksFailed(Exception):
    """Ranks ended otherwise than they should."""


def start_once(start: Start) -> Figures:
    """The figures of one start whose ranks must all end well. Raises RanksFailed."""
    ending = start()
    if any(ending.codes):
        raise RanksFailed(f"exit codes {list(ending.codes)}\n{ending.output[-3000:]}")
    return ending.figures


@dataclass(frozen=True)
class Check:
    """`module` has `measure(scene)`, which ranks call for figures, and `judge(figures, rehearse)`: reasons to fail.
    `drive`, where the module has it, starts the ranks in place of `start_once`.

    `needs`: seconds that it should take on a GPU; it is not started with fewer left. After `limit` seconds it is ended.
    """

    name: str
    part: int
    module: str
    about: str
    ranks: int = 1
    needs: float = 30.0
    limit: float = 120.0
    host_gib: float = field(default=0.0, kw_only=True)
    """Host memory of all ranks, by `harness plan` and their processes; on a GPU it is not started with less."""
    cannot_show: str = field(default="", kw_only=True)
    """A rehearsal on a CPU leaves this open."""

    def _attribute(self, name: str, default: Any = None) -> Any:
        return getattr(import_module(f"benchmarks.gpu_checks.checks.{self.module}"), name, default)

    def measure(self, scene: Any) -> Figures:
        """On a rank: its figures; those of rank 0 count."""
        figures: Figures = self._attribute("measure")(scene)
        return figures

    def drive(self, start: Start) -> Figures:
        """In the parent: start ranks, return figures."""
        figures: Figures = self._attribute("drive", start_once)(start)
        return figures

    def judge(self, figures: Figures, *, rehearse: bool) -> list[str]:
        """In the parent: what is wrong, a sentence each."""
        reasons: list[str] = self._attribute("judge")(figures, rehearse)
        return reasons


@dataclass
class Scene:
    """What `measure` gets on a rank: the task, its place, and a group of all ranks once it is asked for."""

    task: Task
    rank: int
    wire: str = ""
    _distributed: Any = None

    @property
    def rehearse(self) -> bool:
        """Toy sizes on the CPU accelerator?"""
        return self.task.rehearse

    @property
    def world_size(self) -> int:
        """Ranks of this start."""
        return self.task.ranks

    @property
    def folder(self) -> Path:
        """Scratch that all ranks of all starts of this check share."""
        return Path(self.task.folder)

    def pick(self, full: T, toy: T) -> T:
        """A size: the first on a GPU, the second in a rehearsal."""
        return toy if self.rehearse else full

    def join(self) -> None:
        """Join the group of all ranks, for what does not use it by itself."""
        _ = self.distributed

    @property
    def distributed(self) -> Any:
        """The harness's process group, joined at the first use."""
        if self._distributed is None:
            from benchmarks.gpu_checks.device import join_ranks

            self._distributed, self.wire = join_ranks(self.task)
        return self._distributed
