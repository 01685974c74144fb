# SPDX-License-Identifier: Apache-2.0
"""`buffers_elsewhere.py FOLDER ...`: a sharded load puts the model's buffers where DeepSpeed's device is.

The ranks train on the CPU, so the load is given another device: `meta`, which every machine has.
"""

import sys
from types import SimpleNamespace

import torch
from deepspeed.accelerator import get_accelerator

from harness.run.resolved_run import resolve_run
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.models import build_model, zero3_weights
from harness.runtime.models.model_config import load_config
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec


def load(folder: str, ranks: Distributed) -> torch.nn.Module:
    body = {"model": {"name_or_path": folder, "tokenizer": "bytes"}, "zero": {"stage": 3}}
    run = resolve_run(RunSpec.model_validate(body), world_size=ranks.world_size)
    ds_config = {"train_batch_size": ranks.world_size, "zero_optimization": {"stage": 3}}
    return build_model(run, ds_config, load_config(run.spec.model, byte_tokenizer()))


ranks = init_process_group()
for folder in sys.argv[1:]:
    here = {name: buffer.clone() for name, buffer in load(folder, ranks).named_buffers()}
    assert here, f"{folder} has no buffers"
    assert {str(buffer.device) for buffer in here.values()} == {get_accelerator().current_device_name()}
    real, zero3_weights.get_accelerator = (
        zero3_weights.get_accelerator,
        lambda: SimpleNamespace(current_device_name=lambda: "meta"),
    )
    there = load(folder, ranks)
    zero3_weights.get_accelerator = real
    found = {name: (str(buffer.device), buffer.dtype, buffer.shape) for name, buffer in there.named_buffers()}
    assert found == {name: ("meta", buffer.dtype, buffer.shape) for name, buffer in here.items()}
    assert {str(parameter.ds_tensor.device) for parameter in there.parameters()} == {"cpu"}
destroy_process_group()
