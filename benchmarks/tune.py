# SPDX-License-Identifier: Apache-2.0
"""Does `harness tune` find the fastest settings, in how many trials, and what does DeepSpeed's own autotuner find?

    python benchmarks/tune.py [--trials 6] [--steps 12] [--skip-autotuner] [--write FILE]

A tiny Llama on two ranks of this machine. Every setting of the planner's space that the gates let through is run by
`harness tune --trials 64`; which of them the short tuning would have run is asked by a dry run, so that both are judged
by the same measurements. DeepSpeed's autotuner (`deepspeed --autotuning tune`, fast mode, all ZeRO stages) gets the
same model in a script of its own; it needs the package `tabulate`. It does not keep the global batch, and its winner
(stage and micro-batch) is looked up among the exhaustive measurements. Takes most of an hour on two busy cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LLAMA = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}
LENGTH, GLOBAL, RANKS = 128, 16, 2
SPEC = {
    "model": {"tokenizer": "bytes", "config": LLAMA},
    "data": {"train": "builtin:python-docs", "max_length": LENGTH, "eval_fraction": 0.01},
    "train": {"max_steps": 400, "per_device_train_batch_size": 1, "global_batch_size": GLOBAL},
    "optimizer": {"type": "adamw", "learning_rate": 0.001},
    "zero": {"stage": 3},
    "launch": {"num_gpus": RANKS, "env": {"OMP_NUM_THREADS": "1"}},
}
SCRIPT = """\
import argparse
import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
arguments = parser.parse_args()
deepspeed.init_distributed()
model = LlamaForCausalLM(LlamaConfig(**CONFIG))
engine, *_ = deepspeed.initialize(args=arguments, model=model, model_parameters=model.parameters())
for _ in range(200):
    ids = torch.randint(0, 320, (engine.train_micro_batch_size_per_gpu(), LENGTH), device=engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--most", type=int, default=64, help="trials of the exhaustive run at most")
    parser.add_argument("--skip-autotuner", action="store_true")
    parser.add_argument("--write", type=Path, help="write the tables there as Markdown")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tune-") as name:
        folder = Path(name)
        (folder / "spec.yaml").write_text(json.dumps(SPEC, indent=1), encoding="utf-8")
        few = tune(folder, "--trials", str(arguments.trials), "--dry-run")
        began = time.monotonic()
        every = tune(folder, "--trials", str(arguments.most), "--steps", str(arguments.steps))
        text = told(every, [t["title"] for t in few["trials"]], time.monotonic() - began)
        if not arguments.skip_autotuner:
            text += "\n" + autotuner(folder, every, arguments.steps)
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


def tune(folder: Path, *options: str) -> dict[str, Any]:
    """The evidence of one tuning."""
    command = [sys.executable, "-m", "harness", "tune", "spec.yaml", "--format", "json", *options]
    done = subprocess.run(command, cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}


def told(every: dict[str, Any], few: list[str], seconds: float) -> str:
    """All measurements, fastest first, and what the first few trials would have found of them."""
    trials = [t for t in every["trials"] if t["step_seconds"] and not t["title"].endswith("again")]
    best = min(t["step_seconds"] for t in trials)
    lines = [
        f"# Tuning, {time.strftime('%Y-%m-%d')}: {every['machine']}, {every['ranks']} ranks, {every['versions']}",
        "",
        f"{len(trials)} settings with a global batch of {every['global_batch']}, {every['steps']} steps each, "
        f"in {seconds:.0f} s.",
        "",
        "| step | of the best | tokens/s | spread | among the first few | setting |",
        "| ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for t in sorted(trials, key=lambda t: float(t["step_seconds"])):
        rate = t["tokens_per_second"] or 0
        mark = "yes" if t["title"] in few else ""
        state = "" if t["state"] == "measured" else f" ({t['state']})"
        lines.append(
            f"| {1000 * t['step_seconds']:.1f} ms | {t['step_seconds'] / best:.2f} | {rate:,.0f} | "
            f"{t['spread'] or 0:.0%} | {mark} | {t['title']}{state} |"
        )
    found = min((t for t in trials if t["title"] in few), key=lambda t: float(t["step_seconds"]))
    first = trials[0]["step_seconds"]
    lines += [
        "",
        f"`harness tune --trials {len(few)}` finds: {found['title']}, {best / found['step_seconds']:.2f} of the best "
        f"tokens/s of all {len(trials)}; {first / found['step_seconds']:.2f} times the spec as it was.",
        "",
    ]
    return "\n".join(lines)


def autotuner(folder: Path, every: dict[str, Any], steps: int) -> str:
    """What DeepSpeed's autotuner did with the same model: experiments, seconds, its winner; or how it ended."""
    if importlib.util.find_spec("tabulate") is None:
        return "DeepSpeed's autotuner was not run: it needs the package `tabulate`.\n"
    where = folder / "autotuning"
    where.mkdir()
    script = SCRIPT.replace("**CONFIG", f"**{LLAMA!r}").replace("LENGTH", str(LENGTH))
    (where / "train.py").write_text(script, encoding="utf-8")
    body = {
        "train_micro_batch_size_per_gpu": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "zero_optimization": {"stage": "all"},
        "autotuning": {
            "enabled": True,
            "fast": True,
            "max_train_batch_size": GLOBAL,
            "start_profile_step": 3,
            "end_profile_step": steps,
        },
    }
    (where / "ds.json").write_text(json.dumps(body), encoding="utf-8")
    beside = Path(sys.executable).parent / "deepspeed"
    command = [str(beside), "--autotuning", "tune", "train.py"]  # the CPU accelerator counts as one device: one rank
    command += ["--deepspeed", "--deepspeed_config", "ds.json"]
    environment = _environment()
    environment["PYTHONPATH"] = (
        f"{ROOT / 'harness' / 'workers' / 'stubs'}{os.pathsep}{environment['PYTHONPATH']}"  # without mlflow
    )
    path = f"{beside.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=where, env={**environment, "PATH": path}, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    experiments = sorted(where.glob("autotuning_results/*/ds_config.json"))
    lines = [f"DeepSpeed's autotuner: code {done.returncode} after {seconds:.0f} s and {len(experiments)} experiments."]
    lines += [f"- {path.parent.name}: {_metric(path.parent)}" for path in experiments]
    winner = json_of(where / "autotuning_results" / "ds_config_optimal.json")
    if winner:
        lines.append(_beside(winner, every))
    else:
        said = [line for line in (done.stdout + done.stderr).splitlines() if re.search(r"[Ee]rror|WARN", line)]
        lines += ["It found nothing. What it said:", *(f"    {line[:200]}" for line in said[-6:])]
    return "\n".join(lines) + "\n"


def _metric(folder: Path) -> str:
    found = json_of(folder / "metrics.json")
    if found:
        return ", ".join(f"{key} {value:.4g}" for key, value in found.items() if isinstance(value, (int, float)))
    errors = folder / "stderr.log"
    text = errors.read_text(errors="replace").strip().splitlines() if errors.is_file() else []
    wrong = [line for line in text if "Error" in line]
    return f"no metrics; {wrong[-1][:200]}" if wrong else "no metrics"


def _beside(winner: dict[str, Any], every: dict[str, Any]) -> str:
    stage = winner.get("zero_optimization", {}).get("stage", 0)
    micro = winner.get("train_micro_batch_size_per_gpu")
    same = [
        t
        for t in every["trials"]
        if (t["zero_stage"], t["micro_batch"], t["offload_optimizer"]) == (stage, micro, "none")
        and not t["gradient_checkpointing"]
        and t["step_seconds"]
    ]
    best = min(t["step_seconds"] for t in every["trials"] if t["step_seconds"])
    ratio = f"{best / same[0]['step_seconds']:.2f} of the best tokens/s above" if same else "not among those above"
    return f"Its winner: ZeRO-{stage}, micro-batch {micro}: {ratio}."


def json_of(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


if __name__ == "__main__":
    main()
