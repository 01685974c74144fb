# SPDX-License-Identifier: Apache-2.0
"""One rank, from start to exit: join the process group, read the run config, build, train, write the status.

The loop itself is in `train.py`; the supervisor decides the exit code of the run, from the status files.
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

from harness.errors import ExitCode, UserError, user_error
from harness.hostinfo.torch_extensions import set_compile_cache_dir
from harness.runtime.distributed import AgreedUserError, Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter, write_interval
from harness.runtime.run_config import RunConfig, RunDir, load_run_config
from harness.runtime.run_lock import acquire_locks, check_unlocked, release_locks
from harness.runtime.shutdown import exit_with_parent, install_signal_handlers
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.user_errors import print_findings
from harness.runtime.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """Arguments of the launcher's command: the run directory, a checkpoint to resume from, the keys of the spec that
    may differ from it, and the number of this start of the run, counted from 1.
    """

    run_dir: Path
    resume: Path | None = None
    allowed_changes: tuple[str, ...] = ()
    attempt: int = 1


def run_rank(args: WorkerArgs, rank: int, status: RankStatusWriter | None = None) -> int:
    """Train as the run directory says; returns the exit code. Never raises: errors are in the status file. `status`:
    that of a script, which goes on afterwards and writes the final state, which `status.outcome` has.
    """
    exit_with_parent()
    set_compile_cache_dir(os.environ)
    run_dir = RunDir(args.run_dir.resolve())
    try:
        check_unlocked(run_dir)
    except UserError as error:
        print_findings(error.findings if rank == 0 else ())
        return int(error.code)
    watchdog = Watchdog(run_dir.root / "logs", rank, args.attempt)
    goes_on = status is not None
    status = status or RankStatusWriter(run_dir, rank)
    status.on_progress = watchdog.heartbeat
    status.set_activity("waiting for the other ranks")
    try:
        distributed = init_process_group()
        status.interval_seconds = write_interval(distributed.world_size)
        run_config = _load_run_config_on_all_ranks(run_dir, distributed)
        watchdog.set_timeout(run_config.run.spec.launch.hang_timeout_seconds)
        locks = acquire_locks(run_dir, distributed, run_config)
        _set_log_levels(run_config.run.spec.logging.deepspeed_level)
        ctx = build_context(run_config, run_dir, distributed, status, is_resumed=args.resume is not None)
        install_signal_handlers()
        try:
            state = train(ctx, args.resume, args.allowed_changes, args.attempt)
            final_state = status.outcome or "stopped"
            ctx.metrics.write("end", step=state.step, state=final_state, seconds=ctx.metrics.elapsed_seconds)
        finally:
            ctx.metrics.close()
        if goes_on:
            status.step, status.phase, status.outcome = state.step, "end", final_state
            status.set_activity("")
        else:
            status.update(final_state, step=state.step)
        destroy_process_group()
        watchdog.close()
        status.on_progress = None
        release_locks(locks)
    except UserError as error:
        if rank == 0 or not isinstance(error, AgreedUserError):
            print_findings(error.findings)
        status.update("failed", error=str(error), is_user_error=True)
        exit_immediately(error.code)
    except Exception as error:
        traceback.print_exc()
        status.update("failed", error=f"{type(error).__name__}: {error}")
        exit_immediately(ExitCode.BUG)
    return int(ExitCode.OK)


def exit_immediately(code: int) -> NoReturn:
    """Exit without cleanup. After a failure other ranks may wait in a collective for this one, and cleanup could wait
    for them: the launcher ends them as soon as this process is gone. After a success gloo's threads, which DeepSpeed's
    references to its groups keep alive, can abort an interpreter that takes itself apart (exit code -6, seen once).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load_run_config_on_all_ranks(run_dir: RunDir, distributed: Distributed) -> RunConfig:
    """Every rank reads the files itself, and all must read the same bytes: two hosts could train different stages."""
    run_config = distributed.call_or_fail_everywhere(lambda: load_run_config(run_dir))
    digests = distributed.all_gather_object(run_config.sha256)
    other_ranks = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if other_ranks:
        error = user_error(
            "EN102",
            f"rank {other_ranks[0]} reads other files in `{run_dir.root}` than rank 0",
            notes=(
                "`spec.resolved.json` and `ds_config.json` must be the same everywhere",
                f"ranks that differ from rank 0: {', '.join(map(str, other_ranks))}",
            ),
            fix="put the run directory on a disk that all hosts share, or copy it to each",
        )
        raise AgreedUserError(error.findings)
    return run_config


def _set_log_levels(level: str) -> None:
    """The level of DeepSpeed's and transformers' loggers; torch's warnings about its callers are for `debug`."""
    logger.setLevel(getattr(logging, level.upper()))
    transformers_logging.set_verbosity(getattr(logging, level.upper()))
    transformers_logging.disable_progress_bar()
    if level != "debug":  # torch deprecates collectives that DeepSpeed calls in every step
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
        # with NCCL, of DeepSpeed's barriers, and of optimizers whose `step` DeepSpeed or an engine check wraps
        warnings.filterwarnings("ignore", r"barrier\(\): using the device under current context", UserWarning)
        warnings.filterwarnings("ignore", r"Seems like `optimizer\.step\(\)` has been overridden", UserWarning)
