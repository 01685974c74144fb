# SPDX-License-Identifier: Apache-2.0
"""One rank of the run in `--run DIR`: the `deepspeed` launcher starts this file on every node. It decides nothing."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
BACKEND_RANK_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
LOCAL_SIZE_VARIABLES = ("LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""The number of ranks on this host, as DeepSpeed, mpirun and srun call it."""


def main() -> int:
    """Train as one rank. Returns a script's exit code; after the loop the process ends here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="a checkpoint folder to resume from")
    parser.add_argument(
        "--allow-change", action="append", default=[], metavar="KEY", help="what may differ from the checkpoint's spec"
    )
    parser.add_argument("--attempt", type=int, default=1, help="which start of this run it is, counted from 1")
    parser.add_argument("--script", action="store_true", help="run the file of `plugins.script` in place of the loop")
    parser.add_argument("--local_rank", type=int, default=0, help="given by the launcher; LOCAL_RANK is what is read")
    arguments = parser.parse_args()
    load_secrets(arguments.run)
    set_rank_variables()
    set_thread_count()
    rank = int(os.environ.get("RANK", "0"))
    redirect_output(arguments.run, rank, arguments.attempt)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from harness.interpreter import freeze_imports, remove_repeated_root

    remove_repeated_root()
    with freeze_imports():
        from harness.patches.no_mlflow import import_deepspeed, read_switches

        import_deepspeed(read_switches(arguments.run / "spec.resolved.json"))
        from harness.runtime.worker import WorkerArgs, exit_immediately, run_rank

    args = WorkerArgs(arguments.run, arguments.resume, tuple(arguments.allow_change), arguments.attempt)
    if not arguments.script:
        code = run_rank(args, rank)
        atexit._run_exitfuncs()  # of plug-ins, and of trackers that DeepSpeed itself opens
        exit_immediately(code)
    from harness.runtime.user_script import run_script

    return run_script(args, rank)


def load_secrets(run_dir: Path) -> None:
    """Take over the secret variables that DeepSpeed would have sent on a command line."""
    with contextlib.suppress(FileNotFoundError):
        os.environ |= json.loads((run_dir / "secrets.json").read_text(encoding="utf-8"))


def set_rank_variables() -> None:
    """Set RANK, WORLD_SIZE and LOCAL_RANK from the variables of mpirun or srun, unless DeepSpeed's launcher did.

    MASTER_ADDR and MASTER_PORT are among the run's own variables.
    """
    sources = next((names for names in BACKEND_RANK_VARIABLES if names[0] in os.environ), None)
    if sources and "RANK" not in os.environ:
        os.environ |= {name: os.environ[source] for name, source in zip(RANK_VARIABLES, sources, strict=True)}


def set_thread_count() -> None:
    """Set OMP_NUM_THREADS, where it is not set, to this rank's share of the host's cores. torch would take all cores in
    each rank, and CPU Adam with it.
    """
    if "OMP_NUM_THREADS" in os.environ:  # by the plan where all ranks are on one machine, by DeepSpeed where it binds
        return
    own_cores = os.environ.get("SLURM_CPUS_PER_TASK", "")
    local_size = next((os.environ[name] for name in LOCAL_SIZE_VARIABLES if os.environ.get(name, "").isdigit()), "1")
    cores = int(own_cores) if own_cores.isdigit() else len(os.sched_getaffinity(0)) // max(1, int(local_size))
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores))


def redirect_output(run_dir: Path, rank: int, attempt: int) -> None:
    """Send everything that this process and its children print through `output_tee.py`, which also writes it to a file
    of this rank. A terminal, where the launcher was called by hand, stays one.
    """
    if os.isatty(1) and "HARNESS_SUPERVISOR" not in os.environ:  # mpirun gives its ranks terminals too
        return
    file = run_dir / "logs" / (f"rank-{rank:05d}.log" if attempt == 1 else f"rank-{rank:05d}-{attempt}.log")
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("output_tee.py")), str(file), str(rank)]
    environ = {name: value for name, value in os.environ.items() if name != "HARNESS_RUN_DIR"}
    source, target = os.pipe()
    try:
        subprocess.Popen(command, stdin=source, env=environ, start_new_session=True)  # noqa: S603
        os.dup2(target, 1)
        os.dup2(target, 2)
    except OSError as error:
        print(f"no file for this rank's output: {error}", file=sys.stderr)
    os.close(source)
    os.close(target)


if __name__ == "__main__":
    sys.exit(main())
