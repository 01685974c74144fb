# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own reader sees the same in a JSON and in what the adopted run spec renders to."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from deepspeed.runtime.config import DeepSpeedConfig

from harness.convert.conversion import convert_file
from harness.facts.deepspeed_version import resolve_target
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec

ADAM = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}
BASE = {"train_micro_batch_size_per_gpu": 2, "optimizer": ADAM}
CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 6}
CONFIGS = [
    {},
    {"train_batch_size": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5, "bf16": {"enabled": True}},
    {"bfloat16": {"enabled": True}, "zero_optimization": {"stage": 2, "cpu_offload": True, "overlap_comm": True}},
    {"zero_optimization": True, "fp16": {"enabled": True, "initial_scale_power": 8, "auto_cast": True}},
    {"zero_optimization": {"stage": 3, "offload_optimizer": NVME, "offload_param": {**NVME, "buffer_size": 1e8}, "prefetch_bucket_size": 1e7}},
    {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True, "zero_hpz_partition_size": 1, "leaf_module": {"classes": ["A"]}}},
    {"zero_optimization": {"stage": 1, "offload_optimizer": CPU, "reduce_bucket_size": 5e7}, "communication_data_type": "fp32"},
    {"zero_optimization": {"stage": 2}, "fp16": {"enabled": False}, "bf16": {"enabled": False}, "prescale_gradients": True},
    {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}, "wall_clock_breakdown": True, "steps_per_print": 7},
    {"activation_checkpointing": {"partition_activations": True}, "aio": {"block_size": 65536}, "flops_profiler": {"profile_step": 3}},
    {"tensor_parallel": {"autotp_size": 0}, "checkpoint": {"tag_validation": "Fail"}, "data_types": {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": True}},
    {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "adam_w_mode": False, "weight_decay": 0.1, "betas": [0.9, 0.999], "eps": 1e-8}}},
    {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}, "compile": {"deepcompile": False}},
]  # fmt: skip
OURS = {"steps_per_print", "_param_dict"}
"""Printing only, and the dictionary itself."""


def plain(value):
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if type(value).__module__.startswith("deepspeed") and hasattr(value, "__dict__"):
        return {k: plain(v) for k, v in vars(value).items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else str(value)


def seen_by_deepspeed(config):
    seen = {k: plain(v) for k, v in vars(DeepSpeedConfig(copy.deepcopy(config))).items() if k not in OURS}
    zero, fp16 = seen["zero_config"], seen["float16_config"]
    for old in ("cpu_offload", "cpu_offload_param", "stage3_gather_fp16_weights_on_model_save"):
        zero.pop(old, None)  # what they stand for is under the new name
    return {**seen, "float16_config": fp16 if fp16["enabled"] == "True" else "off"}


@pytest.mark.parametrize("config", [{**BASE, **config} for config in CONFIGS], ids=range(len(CONFIGS)))
def test_deepspeed_reads_the_same(config, write):
    file = write("ds.json", json.dumps(config))
    text = convert_file(file, resolve_target()).text
    loaded = load_spec("spec.yaml", text=text)
    rendered = json.loads(render_ds_config(resolve_run(loaded.spec)).json_text)
    assert seen_by_deepspeed(rendered) == seen_by_deepspeed(json.loads(Path(file).read_text()))
