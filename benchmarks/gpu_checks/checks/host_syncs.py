# SPDX-License-Identifier: Apache-2.0
"""The harness's loop does not wait for the device: host synchronisations of steps, by the line that causes them.

On a GPU torch warns of each. On a CPU scalars of floating point that are read from tensors stand in for them.
"""

from __future__ import annotations

import sysconfig
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Figures, Scene
from benchmarks.gpu_checks.runs import train_run
from benchmarks.gpu_checks.training import llama, make_spec

FIRST, LAST = 4, 6
"""Steps that are watched; before them kernels and caches warm up, and engine checks look at the engine."""
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = Path(sysconfig.get_paths()["purelib"])
EXPECTED = ("nonfinite_policy.py", "engine_checks")
"""Files of the harness that read the device on purpose: the policy for NaN, and checks in the first steps."""


def measure(scene: Scene) -> Figures:
    """Synchronisations by line: of the harness, and of everything below it."""
    hidden, length = scene.pick(1024, 32), scene.pick(1024, 32)
    spec = make_spec(
        scene.folder,
        llama(hidden, 2),
        data={"max_length": length},
        train={"max_steps": LAST + 2},
        zero={"stage": 3, "offload_optimizer": {"device": "cpu"}},
        telemetry={"gather_steps": 2},
        logging={"logging_steps": 1},
    )
    watch = SyncWatch()
    train_run(scene, scene.folder / "run", spec, change=watch.watch)
    watch.stop()
    return {"harness": dict(watch.ours), "others": dict(watch.others), "steps": watch.watched}


class SyncWatch:
    """Counts while steps `FIRST` to `LAST` are taken."""

    def __init__(self) -> None:
        self.ours: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.watched = 0
        self._steps, self._mode, self._shown = 0, None, warnings.showwarning

    def watch(self, context: Any) -> None:
        """Stand before the stepper."""
        stepper = context.stepper
        step = stepper.train_step

        def counted(*arguments: Any, **named: Any) -> Any:
            self._steps += 1
            if self._steps == FIRST:
                self._start()
            if self._steps == LAST + 1:
                self.stop()
            self.watched += FIRST <= self._steps <= LAST
            return step(*arguments, **named)

        stepper.train_step = counted

    def _start(self) -> None:
        import torch

        if torch.cuda.is_available():
            warnings.simplefilter("always")
            warnings.showwarning = self._note_warning
            torch.cuda.set_sync_debug_mode("warn")
        else:
            self._mode = _scalar_reads(self.note_line)
            self._mode.__enter__()

    def stop(self) -> None:
        """Count no more."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
            warnings.showwarning = self._shown
        elif self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _note_warning(self, message: Any, *_: Any) -> None:
        if "synchroniz" in str(message):
            self.note_line()

    def note_line(self) -> None:
        """Count the innermost line that is no package's; as the harness's own where no package called torch for it."""
        frames = [f for f in traceback.extract_stack()[:-2] if f.filename not in (__file__, warnings.__file__)]
        frames = [f for f in frames if "/torch/" not in f.filename and "counting.py" not in f.filename]
        if threading.current_thread() is not threading.main_thread() or not frames:
            self.others["another thread"] += 1
            return
        last = frames[-1]
        line = f"{Path(last.filename).name}:{last.lineno}"
        if Path(last.filename).is_relative_to(PACKAGES):
            self.others[line] += 1
        elif not any(name in last.filename for name in EXPECTED):
            self.ours[line] += 1


@contextmanager
def count_syncs() -> Iterator[dict[str, int]]:
    """How often this process waits for the device while this lasts, whatever the line."""
    import torch

    found = {"syncs": 0}

    def note() -> None:
        found["syncs"] += 1

    if not torch.cuda.is_available():
        with _scalar_reads(note):
            yield found
        return
    shown = warnings.showwarning
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **__: note() if "synchroniz" in str(message) else None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")
        warnings.showwarning = shown


def _scalar_reads(note: Callable[[], None]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "local_scalar_dense" in str(func) and args[0].is_floating_point():
                note()
            return func(*args, **(kwargs or {}))

    return Reads()


def judge(figures: Figures, _rehearse: bool) -> list[str]:
    """The harness causes none in these steps."""
    reasons = [
        f"{line} waits for the device {n} times in {figures['steps']} steps" for line, n in figures["harness"].items()
    ]
    if figures["steps"] != LAST - FIRST + 1:
        reasons.append(f"{figures['steps']} steps were watched")
    if not figures["others"]:
        reasons.append("DeepSpeed's own synchronisations were not seen, so that nothing was watched")
    return reasons
