# SPDX-License-Identifier: Apache-2.0
"""Worker of test_pinned_buffers.py: trains a few steps under each allocator of pinned memory; locked bytes, weights."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import pin_memory
from transformers import AutoConfig, AutoModelForCausalLM

from harness.spec.pinned_memory import BACKEND_VARIABLE


def locked_bytes() -> int:
    """Bytes that the process has locked, from the kernel."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmLck:"))


def train(model_config: dict[str, Any], config: dict[str, Any], backend: str) -> dict[str, Any]:
    os.environ[BACKEND_VARIABLE] = backend
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model_config))
    if "nvme_path" in config["zero_optimization"].get("offload_param", {}):
        config["zero_optimization"]["offload_param"]["nvme_path"] = sys.argv[2]
    engine, *_ = deepspeed.initialize(model=model, config=json.loads(json.dumps(config)))
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(2 * engine.gradient_accumulation_steps()):
        ids = torch.randint(0, 200, (1, 16), generator=generator)
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    ranges = pin_memory.get_native_pinned_memory()._ranges if backend == "native" else {}
    digest = hashlib.sha256()
    names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")  # ZeRO-3's, that of stages 1 and 2
    masters = next(getattr(engine.optimizer, name) for name in names if hasattr(engine.optimizer, name))
    for shard in masters:
        digest.update(shard.detach().contiguous().numpy().tobytes())
    result = {
        "blocks": sorted(end - begin for begin, end in ranges.items()),
        "locked": locked_bytes(),
        "weights": digest.hexdigest(),
    }
    engine.destroy()
    del engine, masters
    gc.collect()  # else `__del__` destroys it once more, and unpins what the next engine has got at the same address
    return result


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    results = [{backend: train(model, config, backend) for backend in ("torch", "native")} for model, config in cases]
    Path(sys.argv[2], f"{dist.get_rank()}.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
