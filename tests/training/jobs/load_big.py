# SPDX-License-Identifier: Apache-2.0
"""Loads a pretrained model at stage 3 as the harness does, and tells what it cost each rank: `load_big.py FOLDER OUT`.

Memory is what the process has of its own (RssAnon) and maps of files (RssFile), each at its highest while it loads,
beyond what it had before; bytes read are the kernel's count of `read` calls and of what it mapped.
"""

import json
import sys
import threading
import time
from pathlib import Path

import torch
from safetensors import safe_open

from harness.run.resolved_run import resolve_run
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.models import build_model
from harness.runtime.models.model_config import load_config
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec


def kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def counted(name: str) -> int:
    """Of `/proc/self/io`: `rchar`, bytes of `read` calls; `read_bytes`, bytes that a disk had to give, mapped ones too."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


class Watch(threading.Thread):
    """The highest of both counts while the thread runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = {name: kilobytes(name) for name in ("RssAnon", "RssFile")}
        self.highest = dict(self.before)
        self.over = False

    def run(self) -> None:
        while not self.over:
            for name in self.highest:
                self.highest[name] = max(self.highest[name], kilobytes(name))
            time.sleep(0.005)

    def grown(self) -> dict[str, int]:
        self.over = True
        self.join()
        return {name: (self.highest[name] - self.before[name]) * 1024 for name in self.highest}


def check_values(model: torch.nn.Module, folder: Path, rank: int, world: int) -> int:
    """How many shards are not, to the bit, this rank's part of the stored tensor."""
    wrong = 0
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    for name, parameter in list(model.named_parameters())[:: max(1, len(where) // 20)]:
        with safe_open(folder / where[name], framework="pt") as file:
            whole = file.get_tensor(name).flatten()
        size = parameter.ds_tensor.ds_numel
        mine = whole[rank * size : (rank + 1) * size]
        wrong += not torch.equal(parameter.ds_tensor[: mine.numel()], mine) or size * world < whole.numel()
    return wrong


def main(ranks: Distributed, folder: Path, out: Path) -> None:
    spec = {"model": {"name_or_path": str(folder), "tokenizer": "bytes"}, "precision": {"bf16": True}}
    run = resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=ranks.world_size)
    config = load_config(run.spec.model, byte_tokenizer())
    ds_config = {"train_batch_size": ranks.world_size, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    ranks.all_reduce_sum(1.0)  # the group's own buffers
    watch, began = Watch(), time.monotonic()
    read = {name: counted(name) for name in ("rchar", "read_bytes")}
    watch.start()
    model = build_model(run, ds_config, config)
    mine = {**watch.grown(), "seconds": time.monotonic() - began}
    mine |= {name: counted(name) - before for name, before in read.items()}
    mine["model"] = sum(p.ds_numel for p in model.parameters()) * 2
    mine["wrong"] = check_values(model, folder, ranks.rank, ranks.world_size)
    everyone = ranks.all_gather_object(mine)
    if ranks.is_main_process:
        out.write_text(json.dumps(everyone))


if __name__ == "__main__":
    ranks = init_process_group()
    main(ranks, Path(sys.argv[1]), Path(sys.argv[2]))
    destroy_process_group()
