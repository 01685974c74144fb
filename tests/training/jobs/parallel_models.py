# SPDX-License-Identifier: Apache-2.0
"""`parallel_models.py FOLDER SHAPE ...`: writes tiny random models and the byte tokenizer, a folder a shape."""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.tokenizer import byte_tokenizer
from tests.support.training.parallel_cases import SEED, SHAPES

folder, *shapes = sys.argv[1:]
for shape in shapes:
    fields = dict(SHAPES[shape])
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(fields.pop("model_type"), **fields), dtype=torch.float32
    )
    model.save_pretrained(Path(folder) / shape)
    byte_tokenizer().save_pretrained(Path(folder) / shape)
