# SPDX-License-Identifier: Apache-2.0
"""Time from the command to the first step on several hosts: `harness launch` against the bare `deepspeed` command.

Hosts in a box (`launch/cluster-in-a-box`, so this needs root, sshd and pdsh), real ssh and pdsh, the same script, the
same run directory: the harness adds preflight, the check of compiled ops, node agents and supervision. Both alternate,
so that a busy machine hits both equally. The aim is a ratio of at most 1.1. Writes nothing that stays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOX = [sys.executable, str(ROOT / "launch" / "cluster-in-a-box"), "--name", "startup"]
AIM = 1.1
SPEC = """\
name: startup
model:
  config: {{model_type: llama, vocab_size: 320, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}}
  tokenizer: bytes
data: {{train: {folder}/text.jsonl, max_length: 64, eval_fraction: 0}}
train: {{max_steps: 1, per_device_train_batch_size: 2, seed: 1}}
optimizer: {{type: adamw, learning_rate: 0.001}}
zero: {{stage: 3}}
checkpoint: {{save_at_end: false}}
launch: {{output_dir: {folder}/runs, master_port: 29571, env: {{OMP_NUM_THREADS: "1"}}}}
"""


def on_first_host(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """A command on host 1, its words in a file."""
    place = Path("/run/cluster-in-a-box/startup/bin")
    path = f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    inherited = os.environ.get("PYTHONPATH", "")
    environ = dict(os.environ) | {"PATH": path, "PYTHONPATH": f"{ROOT}:{inherited}".rstrip(":")}
    with (folder / "said.txt").open("ab") as said:
        return subprocess.Popen([*BOX, "exec", "1", "--", *words], env=environ, stdout=said, stderr=said, cwd=folder)


def seconds_to_first_step(words: list[str], folder: Path, metrics: str) -> float:
    """From the command to the line of the first step in metrics.jsonl. Waits for its end. Raises SystemExit."""
    before = set(folder.glob(metrics))
    began = time.time()
    child = on_first_host(words, folder)
    if child.wait(900):
        raise SystemExit(
            f"{' '.join(words)} ended with code {child.returncode}:\n{(folder / 'said.txt').read_text()[-3000:]}"
        )
    (file,) = set(folder.glob(metrics)) - before
    rows = map(json.loads, file.read_text().splitlines())
    first = next(row for row in rows if row["type"] == "step")
    return float(first["time"]) - began


def bare(folder: Path, made: Path, number: int) -> list[str]:
    """The `deepspeed` command of an earlier launch, for a run directory of its own; a script to be run by `sh`."""
    there = folder / "bare" / f"run-{number}"
    shutil.copytree(
        made,
        there,
        ignore=shutil.ignore_patterns("metrics.jsonl", "logs", "status", "data", "checkpoints", "lock", "*.html"),
    )
    for name in ("logs", "status", "checkpoints"):
        (there / name).mkdir()
    for name in ("deepspeed.env", "launch.sh", "launch.json"):
        lines = (there / name).read_text().replace(str(made), str(there)).splitlines(keepends=True)
        (there / name).write_text("".join(x for x in lines if not x.startswith("HARNESS_SUPERVISOR=")))
    return ["sh", str(there / "launch.sh")]


def measure(rounds: int, options: list[str]) -> list[tuple[float, float]]:
    """(bare, harness) seconds of each round, after one round that only warms caches and compiles what is missing."""
    with tempfile.TemporaryDirectory(prefix="hosts-startup-") as scratch:
        folder = Path(scratch)
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"{i} " * 30}) + "\n" for i in range(200)))
        (folder / "spec.yaml").write_text(SPEC.format(folder=folder))
        hostfile = "/run/cluster-in-a-box/startup/hostfile"
        launch = [sys.executable, "-m", "harness", "launch", "spec.yaml", "--hostfile", hostfile, "--quiet", *options]
        seconds_to_first_step(launch, folder, "runs/startup-*/metrics.jsonl")
        (made,) = folder.glob("runs/startup-*")
        found = []
        for number in range(rounds):
            plain = seconds_to_first_step(bare(folder, made, number), folder, "bare/*/metrics.jsonl")
            ours = seconds_to_first_step(launch, folder, "runs/startup-*/metrics.jsonl")
            words = f"deepspeed {plain:.1f} s, harness launch {ours:.1f} s, ratio {ours / plain:.3f}"
            print(f"round {number + 1}: {words}", flush=True)
            found.append((plain, ours))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--option", action="append", default=[], help="of `harness launch`, such as --no-preflight")
    asked = parser.parse_args()
    subprocess.run([*BOX, "up", str(asked.hosts)], check=True, stdout=subprocess.DEVNULL)
    try:
        found = measure(asked.rounds, asked.option)
    finally:
        subprocess.run([*BOX, "down"], check=True)
    plain, ours = (statistics.median(column) for column in zip(*found, strict=True))
    words = f"deepspeed {plain:.1f} s, harness launch {ours:.1f} s, ratio {ours / plain:.3f} (aim {AIM})"
    print(f"median of {len(found)}: {words}")
    return int(ours / plain > AIM)


if __name__ == "__main__":
    sys.exit(main())
