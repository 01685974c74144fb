# SPDX-License-Identifier: Apache-2.0
"""One rank: trains small models with the settings of recipes, scaled, and counts what ZeRO-3 gathers too late.

`gathers_ahead.py OUT.json CASES`: for each case, of its third step and of its second evaluation, elements gathered when
they were needed and ahead, and the most at once.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.counting import gathers
from harness.patches.chunked_loss import ChunkedHead, install_chunked_loss
from harness.patches.nvme_prefetch_duplicate import drop_duplicate_prefetches
from harness.patches.zero3_leaf_params import cache_leaf_parameters
from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
from harness.runtime.distributed import destroy_process_group, init_process_group

LENGTH = 16


def counted(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Of one engine."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**case["config"]))
    if case["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if case["lora"]:
        from peft import LoraConfig, get_peft_model

        model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    zero = json.loads(json.dumps(case["zero"]).replace("NVME", folder))
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": "offload_optimizer" not in zero}},
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=settings)
    drop_duplicate_prefetches(engine, bool)
    head = install_chunked_loss(engine, 8, chunked_cross_entropy) if case["chunks"] else None
    assert head is None or isinstance(head, ChunkedHead), head
    ids = torch.arange(LENGTH).view(1, LENGTH)

    def loss() -> Any:
        if head is not None:
            head.set_labels(ids, LENGTH - 1.0)
        return engine(input_ids=ids, labels=ids, use_cache=False, num_items_in_batch=LENGTH - 1.0).loss

    def step() -> None:
        engine.backward(loss())
        engine.step()

    engine.train()
    step()
    step()
    with gathers(model.parameters()) as trained_step:
        step()
    engine.eval()
    with torch.no_grad():
        loss()
        with gathers() as evaluation:
            loss()
    return {"step": trained_step, "evaluation": evaluation}


if __name__ == "__main__":
    ranks = init_process_group()
    cache_leaf_parameters()
    deepspeed.utils.logger.setLevel("ERROR")
    with tempfile.TemporaryDirectory() as place:
        results = [counted(case, place) for case in json.loads(sys.argv[2])]
    if ranks.is_main_process:
        Path(sys.argv[1]).write_text(json.dumps(results))
    destroy_process_group()
