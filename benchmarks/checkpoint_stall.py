# SPDX-License-Identifier: Apache-2.0
"""Time that a save stalls training: inline, in the background, and with Hugging Face's Trainer. One CPU rank.

    python benchmarks/checkpoint_stall.py [--megabytes 400] [--write]

The harness saves a model of random weights (ZeRO stage 2, Adam on the CPU) three times inline and three times in the
background, alternately, with a training step after each; then Trainer saves it three times with the same DeepSpeed JSON
(its `_save_checkpoint`, which writes the model in addition to DeepSpeed's checkpoint). `--write` puts the figures, the
spec and the versions into `benchmarks/results/checkpoint_stall.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "checkpoint_stall.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400, help="of training state, 12 or 16 bytes a parameter")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/checkpoint_stall.json")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.measure:
        (by_trainer if arguments.trainer else by_harness)(arguments.measure, arguments.megabytes)
        return
    with tempfile.TemporaryDirectory(prefix="checkpoint-stall-") as scratch:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HARNESS_PROGRESS": "plain", "HF_HUB_OFFLINE": "1"}
        env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29741"}
        command = [sys.executable, __file__, "--measure", scratch, "--megabytes", str(arguments.megabytes)]
        result = {}
        for side in ([], ["--trainer"]):
            subprocess.run([*command, *side], check=True, env=env, stdout=sys.stderr)
            result |= json.loads((Path(scratch) / "result.json").read_text(encoding="utf-8"))
    print(json.dumps(result, indent=1))
    if arguments.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def spec(megabytes: int) -> dict[str, Any]:
    """A Llama whose state (weights, master weights, two moments) has about so many megabytes."""
    hidden = 512
    per_layer = 4 * hidden * hidden + 3 * hidden * 4 * hidden
    layers = max(1, round(megabytes * 1e6 / 12 / per_layer))
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 320,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    return {
        "name": "checkpoint-stall",
        "model": {"config": config, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": 8, "eval_fraction": 0.0},
        "train": {"max_steps": 6, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "seed": 1},
        "optimizer": {"learning_rate": 1e-4},
        "precision": {"bf16": False},
        "zero": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "checkpoint": {"save_steps": 1, "save_total_limit": 1, "async_save": True},
    }


def by_harness(scratch: Path, megabytes: int) -> None:
    """On one rank: one engine, one step, then saves in line and in the background, a step after each of the latter."""
    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.runtime.checkpoint import CheckpointSaver
    from harness.runtime.checkpoint.metadata import package_versions
    from harness.runtime.distributed import destroy_process_group, init_process_group
    from harness.runtime.rank_status import RankStatusWriter
    from harness.runtime.run_config import RunDir
    from harness.runtime.step_timer import StepTimer
    from harness.runtime.train_context import build_context
    from harness.runtime.train_state import TrainState
    from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
    from harness.spec.run_spec import RunSpec

    ranks = init_process_group()
    run = resolve_run(RunSpec.model_validate_json(json.dumps(spec(megabytes))), world_size=ranks.world_size)
    (scratch / "spec.resolved.json").write_text(json.dumps(run.to_json()), encoding="utf-8")
    (scratch / "ds_config.json").write_text(json.dumps(dict(render_ds_config(run).config)), encoding="utf-8")
    run_dir = RunDir(scratch)
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    job = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    saver = CheckpointSaver.open(run_dir, ranks, run.spec.checkpoint)

    def step(state: TrainState) -> TrainState:
        batch = job.prefetcher.next_batch(state.position)
        job.stepper.train_step(batch.micro_batches, batch.num_targets, StepTimer())
        return state.advance(
            samples=1, tokens=batch.num_tokens, predicted_tokens=batch.num_targets, position=batch.next_position
        )

    state, outcomes = step(TrainState()), []
    for background in (False, True, False, True, False, True):
        outcomes += saver.save(job, state, background=background)
        state = step(state)
        outcomes += saver.wait_for_pending_save()
    job.prefetcher.close()
    job.metrics.close()
    destroy_process_group()
    errors = [o.error.message for o in outcomes if o.error]
    if errors:
        raise SystemExit(errors[0])
    # The first of each kind takes the memory; of the others the quicker one counts, since other programs only add.
    in_line = [o.stall_seconds for o in outcomes if not o.background][1:]
    behind = [o.copy_seconds for o in outcomes if o.background][1:]
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "megabytes": round(outcomes[0].bytes / 1e6, 1),
        "stall_in_line_seconds": [round(s, 3) for s in in_line],
        "stall_in_background_seconds": [round(s, 3) for s in behind],
        "background_over_in_line": round(min(behind) / min(in_line), 4),
        "seconds_until_complete": [[o.background, round(o.seconds, 3)] for o in outcomes],
        "versions": package_versions(),
        "spec": spec(megabytes),
    }
    (scratch / "result.json").write_text(json.dumps(result), encoding="utf-8")


def by_trainer(scratch: Path, megabytes: int) -> None:
    """On one rank, after `by_harness`: Trainer with its JSON, a save after each of three steps."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    took: list[float] = []

    class Timed(Trainer):
        def _save_checkpoint(self, *given: Any, **named: Any) -> None:
            began = time.perf_counter()
            super()._save_checkpoint(*given, **named)
            took.append(time.perf_counter() - began)

    out = scratch / "trainer"
    config = json.loads((scratch / "ds_config.json").read_text(encoding="utf-8"))
    adam = config["optimizer"]["params"]
    arguments = TrainingArguments(
        output_dir=str(out),
        deepspeed=config,
        use_cpu=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        max_steps=3,
        learning_rate=adam["lr"],
        adam_beta1=adam["betas"][0],
        adam_beta2=adam["betas"][1],
        adam_epsilon=adam["eps"],
        weight_decay=adam["weight_decay"],
        max_grad_norm=config["gradient_clipping"],
        save_steps=1,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec(megabytes)["model"]["config"]))
    row = torch.arange(8)
    Timed(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row}] * 3).train()
    bytes_ = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    result = {
        "stall_trainer_seconds": [round(s, 3) for s in took[1:]],
        "trainer_megabytes": round(bytes_ / 1e6, 1),
    }
    background = json.loads((scratch / "result.json").read_text(encoding="utf-8"))["stall_in_background_seconds"]
    result["background_over_trainer"] = round(min(background) / min(took[1:]), 4)
    (scratch / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
