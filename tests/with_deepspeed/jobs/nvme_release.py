"""`nvme_release.py OUT.json FOLDER`: an optimizer on NVMe with each way of swapping, as DeepSpeed does it and with what
is written released. Of each: losses, digests of the weights and of the swap files, and bytes of states that are in host
memory and not in the swap buffers, after the first step and after the last.
"""

import hashlib
import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.patches.nvme_release import release_written_states

SIZE, LAYERS, STEPS = 512, 4, 3
WAYS = {"neither": (False, False), "read": (True, False), "write": (False, True), "both": (True, True)}


def config(way, folder):
    """DeepSpeed's JSON: a sub-group for each layer."""
    read, write = WAYS[way]
    offload = {"device": "nvme", "nvme_path": str(folder), "pin_memory": True, "buffer_count": 12}
    offload |= {"pipeline_read": read, "pipeline_write": write}
    zero = {"stage": 3, "sub_group_size": SIZE * SIZE, "stage3_param_persistence_threshold": 0}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {**zero, "offload_optimizer": offload},
    }


def kept(zero):
    """Bytes of the states' own memory."""
    buffers = {b.untyped_storage().data_ptr() for b in zero.optimizer_swapper.swap_buffer_manager.all_buffers}
    states = [
        t for state in zero.optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.numel() > 1
    ]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in states}
    return sum(size for place, size in storages.items() if place not in buffers)


def trained(way, folder):
    with deepspeed.zero.Init(config_dict_or_path=config(way, folder)):
        model = torch.nn.Sequential(*[torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS)])
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.ds_tensor.data.normal_(std=0.02, generator=generator)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(way, folder))
    rows = torch.randn(2, SIZE, generator=generator).bfloat16()
    losses, held = [], []
    for _ in range(STEPS):
        loss = engine(rows).float().sub(1).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        held.append(kept(engine.optimizer))
    weights, files = hashlib.sha256(), []
    for parameter in model.parameters():
        weights.update(parameter.ds_tensor.contiguous().view(torch.uint8).numpy().tobytes())
    swapper = engine.optimizer.optimizer_swapper
    for info in swapper.swap_params_info.values():
        for context in info.tensors:
            content = Path(context.swap_path).read_bytes()[: 4 * info.numel()]
            files.append(hashlib.sha256(content).hexdigest())
    engine.destroy()
    return {"losses": losses, "weights": weights.hexdigest(), "files": files, "kept": [held[0], held[-1]]}


ranks = init_process_group()
AsyncIOBuilder().load(verbose=False)
found = {}
for name in ("bare", "released"):  # a patch holds for the rest of the process
    for way in WAYS:
        place = Path(sys.argv[2]) / way / name
        if name == "released":
            release_written_states(config(way, place))
        found[f"{way}, {name}"] = trained(way, place)
Path(sys.argv[1]).write_text(json.dumps({"bytes": 8 * SIZE * SIZE * LAYERS, **found}))
destroy_process_group()
