"""What the `deepspeed` launcher starts on every node: one rank of the run in `--run DIR`. It decides nothing."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
STARTERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)

RANKS_HERE = ("LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""How many ranks this host has: DeepSpeed's word, mpirun's, srun's."""


def read_the_starters_variables() -> None:
    """DeepSpeed's launcher tells each rank its number; mpirun and srun, which it can leave the start to, in their own
    words. Rank 0's address comes with the run's other variables.
    """
    names = next((names for names in STARTERS if names[0] in os.environ), None)
    if names and "RANK" not in os.environ:
        os.environ |= {mine: os.environ[theirs] for mine, theirs in zip(RANK, names, strict=True)}


def share_cores() -> None:
    """Where nobody said how many threads a rank has: its share of this host's cores. torch would take all of them, each
    rank, and CPU Adam with it.
    """
    if "OMP_NUM_THREADS" in os.environ:  # the plan says so where all ranks are on one machine, DeepSpeed where it binds
        return
    own = os.environ.get("SLURM_CPUS_PER_TASK", "")
    ranks = next((os.environ[name] for name in RANKS_HERE if os.environ.get(name, "").isdigit()), "1")
    cores = int(own) if own.isdigit() else len(os.sched_getaffinity(0)) // max(1, int(ranks))
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores))


def keep_output(run_dir: Path, rank: int, attempt: int) -> None:
    """From here on everything that this process and its children print goes through `relay.py`, into a file of this
    rank's own as well. A terminal, where the launcher was called by hand, stays one.
    """
    if os.isatty(1) and "HARNESS_SUPERVISOR" not in os.environ:  # mpirun gives its ranks terminals too
        return
    file = run_dir / "logs" / (f"rank-{rank:05d}.log" if attempt == 1 else f"rank-{rank:05d}-{attempt}.log")
    words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("relay.py")), str(file), str(rank)]
    environ = {name: value for name, value in os.environ.items() if name != "HARNESS_RUN_DIR"}
    source, target = os.pipe()
    try:
        subprocess.Popen(words, stdin=source, env=environ, start_new_session=True)  # noqa: S603
        os.dup2(target, 1)
        os.dup2(target, 2)
    except OSError as error:
        print(f"no file for this rank's output: {error}", file=sys.stderr)
    os.close(source)
    os.close(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="a checkpoint folder to go on from")
    parser.add_argument(
        "--allow-change", action="append", default=[], metavar="KEY", help="what may differ from the checkpoint's spec"
    )
    parser.add_argument("--attempt", type=int, default=1, help="which start of this run it is, counted from 1")
    parser.add_argument("--local_rank", type=int, default=0, help="given by the launcher; LOCAL_RANK is what is read")
    arguments = parser.parse_args()
    read_the_starters_variables()
    share_cores()
    rank = int(os.environ.get("RANK", "0"))
    keep_output(arguments.run, rank, arguments.attempt)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from harness.runtime.patches.no_mlflow import import_deepspeed

    import_deepspeed()
    from harness.runtime.worker import WorkerArgs, run_rank

    start = WorkerArgs(arguments.run, arguments.resume, tuple(arguments.allow_change), arguments.attempt)
    sys.exit(run_rank(start, rank))
