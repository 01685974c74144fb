# SPDX-License-Identifier: Apache-2.0
"""Write `tests/frozen/VERSION/`: specs, run directories and checkpoints of a version, which every later version must read.

    make freeze
    .venv/bin/python -m tests.frozen.freeze --code /path/to/a/checkout/of/that/version

It trains each spec of `SPECS` on two CPU ranks, removes what is large and can be made again, and replaces the names of this
machine outside the checkpoints: their files have hashes, and no name of a machine is in them. It ends with an error, and
leaves nothing, where the version is frozen already, a run does not end as expected, or a name remains.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.frozen.frozen_files import FROZEN, foreign_paths, read_text

ROOT = Path(__file__).resolve().parents[2]
WORK = Path("/tmp/frozen")  # noqa: S108
"""Where the runs are made: the folder stands in their files."""
SAVE_STEP, LAST_STEP = 3, 6
SPECS = {
    "zero2": """\
# bf16 at ZeRO-2. No evaluation after the first is better by so much, so that the run stops early, at step 6.
name: zero2
model:
  config: {model_type: llama, vocab_size: 320, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
           num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 64, tie_word_embeddings: true}
  tokenizer: bytes
data: {train: text.txt, max_length: 32, eval_fraction: 0.1}
train: {max_steps: 8, per_device_train_batch_size: 2, global_batch_size: 8, seed: 1}
precision: {bf16: true}
optimizer: {type: adamw, learning_rate: 0.01, weight_decay: 0.1}
scheduler: {type: cosine, warmup_steps: 1}
zero: {stage: 2}
eval: {eval_steps: 1, early_stopping_patience: 5, early_stopping_threshold: 10}
checkpoint: {save_steps: 3}
launch: {num_gpus: 2}
cluster: {gpu: cpu}
""",
    "zero3-offload": """\
# fp32 at ZeRO-3 with parameters and optimizer on the CPU, prompts with completions in packed rows. It stops early, too.
name: zero3-offload
model:
  config: {model_type: llama, vocab_size: 320, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
           num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 64}
  tokenizer: bytes
data: {train: pairs.jsonl, max_length: 64, eval_fraction: 0.1, packing: true}
train: {max_steps: 8, per_device_train_batch_size: 2, global_batch_size: 4, seed: 2}
optimizer: {type: adamw, learning_rate: 0.01}
scheduler: {type: linear, warmup_steps: 2}
zero: {stage: 3, offload_optimizer: {device: cpu}, offload_param: {device: cpu}}
eval: {eval_steps: 1, early_stopping_patience: 5, early_stopping_threshold: 10}
checkpoint: {save_steps: 3}
launch: {num_gpus: 2}
cluster: {gpu: cpu}
""",
}
NUMBERS = [(a, b) for a in range(20) for b in range(20)]
DATA = {
    "text.txt": "\n".join(f"{a} and {b} are {a + b}, {a} times {b} is {a * b}.\n" for a, b in NUMBERS),
    "pairs.jsonl": "".join(
        json.dumps({"prompt": f"{a} and {b} are ", "completion": f"{a + b}."}) + "\n" for a, b in NUMBERS
    ),
}


def run_harness(code: Path, *words: str, expected: int = 0) -> str:
    """The output of a command of the version in `code`."""
    environment = os.environ | {"PYTHONPATH": str(code), "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-P", "-m", "harness", *words]
    done = subprocess.run(command, cwd=WORK, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != expected:
        raise SystemExit(f"`harness {' '.join(words)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def names_of_machine(code: Path) -> dict[str, str]:
    """What must not be kept of this machine -> what stands for it. Its own name comes last."""
    return {
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(): "00000000-0000-0000-0000-000000000000",
        str(Path(sys.executable).parent): "/opt/harness/.venv/bin",
        str(code): "/opt/harness",
        str(Path.home()): "/home/user",
        platform.node(): "machine",
    }


def train(name: str, code: Path) -> None:
    """Run a spec to its end, and leave of its checkpoints the one of `SAVE_STEP`."""
    (WORK / f"{name}.yaml").write_text(SPECS[name])
    run_harness(code, "render", f"{name}.yaml", "--write")
    run_harness(code, "launch", f"{name}.yaml", "--progress", "quiet")
    run_dir = (WORK / "runs" / "latest").resolve()
    run_harness(code, "checkpoint", "rm", str(run_dir / "checkpoints" / f"step-{LAST_STEP:08d}"), "--yes")
    saved = [path.name for path in (run_dir / "checkpoints").glob("step-*")]
    ends = [row for row in map(json.loads, (run_dir / "metrics.jsonl").open()) if row["type"] in ("stop", "end")]
    if saved != [f"step-{SAVE_STEP:08d}"] or [(e["type"], e["step"]) for e in ends] != [("stop", 6), ("end", 6)]:
        raise SystemExit(f"{name} did not go as expected: {saved}, {ends}")
    (run_dir / "report.html").unlink()


def replace_names(folder: Path, names: dict[str, str]) -> None:
    """Replace the names of this machine in every text; raises where they stand in tensors or in a file with a hash."""
    *long_names, host = names
    patterns = {re.compile(re.escape(name)): names[name] for name in long_names}
    patterns[re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w.-])")] = names[host]
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        body, text = path.read_bytes(), read_text(path)
        if text is None:  # tensors; two letters of a host's name stand in them by chance
            replaced = b"" if any(name.encode() in body for name in long_names) else body
        else:
            for pattern, replacement in patterns.items():
                text = pattern.sub(replacement, text)
            replaced = text.encode()
        if replaced == body:
            continue
        if text is None or "checkpoints" in path.parts or path.name == "spec.resolved.json":
            raise SystemExit(f"{path} names this machine and has a hash: it cannot be rewritten")
        path.write_bytes(replaced)


def main() -> None:
    """Freeze the version of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, default=ROOT, help="a checkout of the version; default: this one")
    code = parser.parse_args().code.resolve()
    git = ["git", "-C", str(code)]
    if not (code / "harness").is_dir() or subprocess.call([*git, "rev-parse", "-q", "HEAD"], stdout=subprocess.DEVNULL):
        raise SystemExit(f"{code} is no checkout of the harness")
    if subprocess.check_output([*git, "status", "--porcelain"], text=True):
        raise SystemExit(f"{code} has changes that are not committed: nobody could make these files again")
    if WORK.exists():
        raise SystemExit(f"{WORK} is there already; remove it first")
    WORK.mkdir()
    try:
        version = run_harness(code, "--version").split()[-1]
        if (FROZEN / version).exists():
            raise SystemExit(f"{FROZEN / version} is there already; a frozen version is never made again")
        for name, text in DATA.items():
            (WORK / name).write_text(text)
        for name in SPECS:
            train(name, code)
        (WORK / "runs" / "latest").unlink()
        replace_names(WORK, names_of_machine(code))
        commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        (WORK / "frozen.json").write_text(json.dumps({"version": version, "commit": commit}, indent=1) + "\n")
        if left := foreign_paths(WORK):
            raise SystemExit("paths of this machine remain:\n" + "\n".join(left))
        shutil.copytree(WORK, FROZEN / version)
    finally:
        shutil.rmtree(WORK)
    size = sum(path.stat().st_size for path in (FROZEN / version).rglob("*") if path.is_file())
    print(f"{FROZEN / version}: {size / 1e6:.2f} MB of commit {commit[:12]}")


if __name__ == "__main__":
    main()
