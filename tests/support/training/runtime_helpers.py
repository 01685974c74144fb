# SPDX-License-Identifier: Apache-2.0
"""Run directories by hand, and the real launcher: shared by the modules of this folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.hostinfo.torch_extensions import VARIABLE, torch_extensions_dir

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "tests" / "training" / "jobs"
BIN = Path(sys.executable).parent
PORTS = range(
    29731, 29739
)  # few and fixed: the CPU all-reduce names files in /dev/shm after them and never removes them

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "attention_dropout": 0.1,
}


def rank_environment() -> dict[str, str]:
    """What the supervisor would set: one thread a rank, plain output, our package and this interpreter's ninja in reach."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HARNESS_PROGRESS": "plain",
        # Plain DeepSpeed would compile every op once more, in torch's own folder.
        VARIABLE: str(torch_extensions_dir()),
        "PYTHONPATH": str(ROOT),
        # Two versions of ninja that share the folder of compiled ops rebuild each other's, minutes each time.
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def launch(script: Path, *arguments: str, timeout: float = 300, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a script on so many ranks under the real launcher."""
    port = free_port()
    command = launcher_command(port, script, *arguments, ranks=ranks)
    try:
        return subprocess.run(
            command, env=rank_environment(), capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
        )
    finally:
        remove_shared_buffers(port)


def launcher_command(port: int, script: Path, *arguments: str, ranks: int = 2) -> list[str]:
    """The real launcher."""
    return [str(BIN / "deepspeed"), "--num_gpus", str(ranks), "--master_port", str(port), str(script), *arguments]


def free_port() -> int:
    """The first of our ports that nobody listens on."""
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"all of {PORTS} are in use")


def remove_shared_buffers(port: int) -> None:
    """The 66 MiB a rank that DeepSpeed's CPU all-reduce leaves in /dev/shm: those of this port."""
    for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):  # noqa: S108
        buffer.unlink(missing_ok=True)


def write_run(folder: Path, spec: dict[str, Any], config: dict[str, Any], world_size: int = 2) -> Path:
    """A run directory as the launching side makes it, with this DeepSpeed JSON."""
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec

    folder.mkdir(parents=True)
    run = resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=world_size)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (folder / "ds_config.json").write_text(json.dumps(config, indent=2))
    return folder


def metric_lines(run: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one type in a run's metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] == kind]
