"""`buffers_elsewhere.py FOLDER ...`: a sharded load puts the model's buffers where DeepSpeed's device is.

The ranks train on the CPU, so the load is given another device: `meta`, which every machine has.
"""

import sys
from types import SimpleNamespace

import torch
from deepspeed.accelerator import get_accelerator

from harness.plan.run import resolve
from harness.runtime.models import build_model, sharded
from harness.runtime.models.configuration import load_config
from harness.runtime.ranks import Ranks, join, leave
from harness.runtime.tokens import byte_tokenizer
from harness.spec.model import RunSpec


def load(folder: str, ranks: Ranks) -> torch.nn.Module:
    body = {"model": {"name_or_path": folder, "tokenizer": "bytes"}, "zero": {"stage": 3}}
    run = resolve(RunSpec.model_validate(body), world_size=ranks.world)
    ds_config = {"train_batch_size": ranks.world, "zero_optimization": {"stage": 3}}
    return build_model(run, ds_config, load_config(run.spec.model, byte_tokenizer()))


ranks = join()
for folder in sys.argv[1:]:
    here = {name: buffer.clone() for name, buffer in load(folder, ranks).named_buffers()}
    assert here, f"{folder} has no buffers"
    assert {str(buffer.device) for buffer in here.values()} == {get_accelerator().current_device_name()}
    real, sharded.get_accelerator = sharded.get_accelerator, lambda: SimpleNamespace(current_device_name=lambda: "meta")
    there = load(folder, ranks)
    sharded.get_accelerator = real
    found = {name: (str(buffer.device), buffer.dtype, buffer.shape) for name, buffer in there.named_buffers()}
    assert found == {name: ("meta", buffer.dtype, buffer.shape) for name, buffer in here.items()}
    assert {str(parameter.ds_tensor.device) for parameter in there.parameters()} == {"cpu"}
leave()
