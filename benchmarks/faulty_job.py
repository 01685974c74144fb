# SPDX-License-Identifier: Apache-2.0
"""A small training with bare DeepSpeed that goes wrong in the way named on its command line. Run by `log_causes.py`.

It knows nothing of the harness: what it prints is what any DeepSpeed job prints.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--config", default="{}")
    if "no-local-rank" not in sys.argv:
        parser.add_argument("--local_rank", type=int)
    args = parser.parse_args()
    if args.fault == "module" and os.environ["RANK"] == "1":
        import flash_attention_of_nobody  # noqa: F401
    patience = datetime.timedelta(seconds=25 if "late" in args.fault else 600)
    new_group = torch.distributed.new_group  # DeepSpeed makes its groups with torch's default of half an hour
    torch.distributed.new_group = lambda *a, **k: new_group(*a, **{"timeout": patience, **k})
    deepspeed.init_distributed(timeout=patience)
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    before(args.fault, rank, args.folder)
    model = model_of(args.fault)
    changes = json.loads(args.config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG | changes)
    loading(args.fault, engine, args.folder)
    data = iter(torch.randint(0, 50, (6 if rank != 1 or args.fault != "data-ran-out" else 3, 2, 8)))
    for step in range(6):
        batch = next(data)
        during(args.fault, rank, step, batch)
        loss = engine(batch).pow(2).mean()
        if args.fault == "nan" and step == 3:
            loss = loss / 0 * 0
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is nan at step {step}")
        engine.backward(loss)
        engine.step()
        if args.fault == "backward-twice":
            engine.backward(loss)
        if rank == 0:
            print(f"step {step} loss: {loss.item():.4f}", flush=True)
    saving(args.fault, engine, args.folder)


def model_of(fault: str) -> torch.nn.Sequential:
    if fault == "missing-model":
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained("nobody/has-this-model")
    if fault == "missing-weights":
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(sys.argv[sys.argv.index("--folder") + 1])
    width = 24 if fault == "other-width" else 16
    last = 7 if fault == "shapes" else width
    return torch.nn.Sequential(
        torch.nn.Embedding(50, width), torch.nn.Linear(width, width), torch.nn.Linear(last, width)
    )


def before(fault: str, rank: int, folder: str) -> None:
    if fault == "bad-data":
        for line in Path(folder, "data.jsonl").read_text().splitlines():
            json.loads(line)
    elif fault == "caught-first" and rank == 0:
        import traceback

        try:
            Path("/nowhere/at/all").read_text()
        except OSError:
            traceback.print_exc()
    elif fault == "open-files" and rank == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        keep = [open("/dev/null") for _ in range(100)]  # noqa: PTH123, SIM115
        print(len(keep))


def during(fault: str, rank: int, step: int, batch: torch.Tensor) -> None:  # noqa: C901
    if step != 2:
        return
    if fault in ("killed", "caught-first") and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "segfault" and rank == 1:
        ctypes.string_at(0)
    elif fault == "memory-limit" and rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        torch.ones(1 << 30)
    elif fault == "stopped-late" and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "sleeps-late" and rank == 1:
        time.sleep(300)
    elif fault == "vocabulary":
        batch[0, 0] = 50
    elif fault == "mismatch":
        torch.distributed.all_reduce(torch.ones(4 if rank else 8))
    elif fault == "terminated" and rank == 0:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
    elif fault == "nobody-knows" and rank == 1:

        class JudgeDisagrees(Exception):
            pass

        raise JudgeDisagrees("three of five")


def loading(fault: str, engine: deepspeed.DeepSpeedEngine, folder: str) -> None:
    if fault in ("torn", "torn-weights", "files-missing", "other-ranks", "other-width", "other-optimizer", "load"):
        engine.load_checkpoint(folder)


def saving(fault: str, engine: deepspeed.DeepSpeedEngine, folder: str) -> None:
    if fault in ("save", "disk-full", "read-only"):
        engine.save_checkpoint(folder)


if __name__ == "__main__":
    main()
