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

from harness.errors import ExitCode, UserError
from harness.runtime import train
from harness.runtime.distributed import AgreedUserError, Distributed, destroy_process_group, init_process_group
from harness.runtime.nonfinite_policy import should_stop_early
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir, load_run_config
from harness.runtime.run_lock import acquire_locks, check_unlocked, release_locks
from harness.runtime.shutdown import exit_with_parent, install_signal_handlers
from harness.runtime.user_errors import print_findings, user_error
from harness.runtime.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """What the launcher's command says: the run directory, a checkpoint to go on from, which keys of the spec may
    differ from its, and which start of this run it is, counted from 1.
    """

    run_dir: Path
    resume: Path | None = None
    allowed_changes: tuple[str, ...] = ()
    attempt: int = 1


def run_rank(args: WorkerArgs, rank: int) -> int:
    """Train as the run directory says; returns the exit code. Never raises: what went wrong is in the status file."""
    exit_with_parent()
    run_dir = RunDir(args.run_dir.resolve())
    try:
        check_unlocked(run_dir)
    except UserError as refused:
        print_findings(refused.findings if rank == 0 else ())
        return int(refused.code)
    watchdog = Watchdog(run_dir.root / "logs", rank, args.attempt)
    status = RankStatusWriter(run_dir, rank, on_progress=watchdog.heartbeat)
    status.update("starting")
    try:
        ranks = init_process_group()
        orders = _load_run_config_on_all_ranks(run_dir, ranks)
        watchdog.set_timeout(orders.run.spec.launch.hang_timeout_seconds)
        locks = acquire_locks(run_dir, ranks, orders)
        _set_log_levels(orders.run.spec.logging.deepspeed_level)
        job = train.build_context(orders, run_dir, ranks, status)
        install_signal_handlers()
        try:
            state = train.train(job, args.resume, args.allowed_changes, args.attempt)
            early = should_stop_early(orders.run.spec.eval, state)
            ended = "completed" if early or state.step >= job.total_steps else "stopped"
            job.metrics.write("end", step=state.step, state=ended, seconds=job.metrics.elapsed_seconds)
        finally:
            job.metrics.close()
        status.update(ended, step=state.step)  # type: ignore[arg-type]
        destroy_process_group()
        watchdog.close()
        release_locks(locks)
    except UserError as refused:
        if rank == 0 or not isinstance(refused, AgreedUserError):
            print_findings(refused.findings)
        status.update("failed", error=str(refused), is_user_error=True)
        _exit_immediately(refused.code)
    except Exception as error:
        traceback.print_exc()
        status.update("failed", error=f"{type(error).__name__}: {error}")
        _exit_immediately(ExitCode.BUG)
    return int(ExitCode.OK)


def _exit_immediately(code: int) -> NoReturn:
    """Leave without cleaning up: other ranks may wait in a collective for this one, and cleaning up could wait for
    them. The launcher ends them as soon as this process is gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load_run_config_on_all_ranks(run_dir: RunDir, distributed: Distributed) -> RunConfig:
    """Every rank reads for itself, and all must read the same bytes: else two hosts could train different stages."""
    orders = distributed.call_or_fail_everywhere(lambda: load_run_config(run_dir))
    digests = distributed.all_gather_object(orders.sha256)
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        refused = user_error(
            "EN102",
            f"rank {different[0]} reads other files in `{run_dir.root}` than rank 0",
            notes=(
                "`spec.resolved.json` and `ds_config.json` must be the same everywhere",
                f"ranks that differ from rank 0: {', '.join(map(str, different))}",
            ),
            fix="put the run directory on a disk that all hosts share, or copy it to each",
        )
        raise AgreedUserError(refused.findings)
    return orders


def _set_log_levels(level: str) -> None:
    """What DeepSpeed's and transformers' loggers may print; torch's warnings about its callers are for `debug`."""
    logger.setLevel(getattr(logging, level.upper()))
    transformers_logging.set_verbosity(getattr(logging, level.upper()))
    transformers_logging.disable_progress_bar()
    if level != "debug":  # torch deprecates collectives that DeepSpeed calls in every step
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
