"""One rank's life: join, read, agree, build, train, say how it ended, leave.

The work itself is in `loop.py`; the exit code of a run is the supervisor's to decide, from the status files.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from deepspeed.utils import logger
from transformers.utils import logging as transformers_logging

from harness.errors import Exit, Refused
from harness.runtime import loop
from harness.runtime.holding import hold, refuse_if_held, release
from harness.runtime.policies import patience_is_out
from harness.runtime.ranks import Ranks, RefusedByAll, join, leave
from harness.runtime.refusals import refusal, say
from harness.runtime.rundir import Orders, RunDir, read_orders
from harness.runtime.status import Status
from harness.runtime.stopping import die_with_the_starter, listen
from harness.runtime.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Start:
    """What the launcher's command says: the run directory, a checkpoint to go on from, which keys of the spec may
    differ from its, and which start of this run it is, counted from 1.
    """

    root: Path
    resume: Path | None = None
    allowed: tuple[str, ...] = ()
    attempt: int = 1


def run_rank(start: Start, rank: int) -> int:
    """Train as the run directory says; returns the exit code. Never raises: what went wrong is in the status file."""
    die_with_the_starter()
    run_dir = RunDir(start.root.resolve())
    try:
        refuse_if_held(run_dir)
    except Refused as refused:
        say(refused.findings if rank == 0 else ())
        return int(refused.code)
    watchdog = Watchdog(run_dir.root / "logs", rank, start.attempt)
    status = Status(run_dir, rank, on_progress=watchdog.beat)
    status.set("starting")
    try:
        ranks = join()
        orders = _read_together(run_dir, ranks)
        watchdog.limit(orders.run.spec.launch.hang_timeout_seconds)
        locks = hold(run_dir, ranks, orders)
        _quieten(orders.run.spec.logging.deepspeed_level)
        job = loop.build(orders, run_dir, ranks, status)
        listen()
        try:
            state = loop.train(job, start.resume, start.allowed, start.attempt)
            early = patience_is_out(orders.run.spec.eval, state)
            ended = "completed" if early or state.step >= job.steps else "stopped"
            job.metrics.write("end", step=state.step, state=ended, seconds=job.metrics.seconds)
        finally:
            job.metrics.close()
        status.set(ended, step=state.step)  # type: ignore[arg-type]
        leave()
        watchdog.close()
        release(locks)
    except Refused as refused:
        if rank == 0 or not isinstance(refused, RefusedByAll):
            say(refused.findings)
        status.set("failed", error=str(refused), refused=True)
        _end_at_once(refused.code)
    except Exception as error:
        traceback.print_exc()
        status.set("failed", error=f"{type(error).__name__}: {error}")
        _end_at_once(Exit.BUG)
    return int(Exit.OK)


def _end_at_once(code: int) -> NoReturn:
    """Leave without cleaning up: other ranks may wait in a collective for this one, and cleaning up could wait for
    them. The launcher ends them as soon as this process is gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read_together(run_dir: RunDir, ranks: Ranks) -> Orders:
    """Every rank reads for itself, and all must read the same bytes: else two hosts could train different stages."""
    orders = ranks.together(lambda: read_orders(run_dir))
    digests = ranks.gather(orders.sha256)
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        refused = refusal(
            "EN102",
            f"rank {different[0]} reads other files in `{run_dir.root}` than rank 0",
            notes=(
                "`spec.resolved.json` and `ds_config.json` must be the same everywhere",
                f"ranks that differ from rank 0: {', '.join(map(str, different))}",
            ),
            fix="put the run directory on a disk that all hosts share, or copy it to each",
        )
        raise RefusedByAll(refused.findings)
    return orders


def _quieten(level: str) -> None:
    """What DeepSpeed's and transformers' loggers may print; torch's warnings about its callers are for `debug`."""
    logger.setLevel(getattr(logging, level.upper()))
    transformers_logging.set_verbosity(getattr(logging, level.upper()))
    transformers_logging.disable_progress_bar()
    if level != "debug":  # torch deprecates collectives that DeepSpeed calls in every step
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
