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

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from counting import gathers

from harness.runtime.chunked_loss import ChunkedHead, chunk_head
from harness.runtime.fewer_calls import call_less
from harness.runtime.nvme_prefetch import read_ahead_once
from harness.runtime.ranks import join, leave

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
    read_ahead_once(engine.module)
    head = chunk_head(engine, 8) if case["chunks"] else None
    assert head is None or isinstance(head, ChunkedHead), head
    ids = torch.arange(LENGTH).view(1, LENGTH)

    def loss() -> Any:
        if head is not None:
            head.arm(ids, LENGTH - 1.0)
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
    ranks = join()
    call_less()
    deepspeed.utils.logger.setLevel("ERROR")
    with tempfile.TemporaryDirectory() as place:
        results = [counted(case, place) for case in json.loads(sys.argv[2])]
    if ranks.is_first:
        Path(sys.argv[1]).write_text(json.dumps(results))
    leave()
