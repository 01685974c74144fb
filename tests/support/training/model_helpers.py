# SPDX-License-Identifier: Apache-2.0
"""Tiny pretrained models of several families, and one of a gigabyte: shared by the tests of models, LoRA and plug-ins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from harness.runtime.engine import weight_decay_groups
from harness.runtime.lr_schedule import scheduler_factory
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS

_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, **_LLAMA},
    "llama": {"model_type": "llama", "tie_word_embeddings": False, **_LLAMA},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": False, **_LLAMA},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **_LLAMA},
}


def make_model(family: str, folder: Path) -> Path:
    """A random tiny model of the family, seeded, in fp32."""
    torch.manual_seed(0)
    fields = FAMILIES[family] | {"vocab_size": 320, "eos_token_id": 256, "pad_token_id": 257, "bos_token_id": 256}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).save_pretrained(folder)
    return folder


def adapter_losses(model: Any, lora: dict[str, Any]) -> list[float]:
    """The losses of four steps of one process with `peft` and torch's own AdamW, on both ranks' rows at once."""
    import peft

    spec = RunSpec.model_validate_json(json.dumps({"optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1}}))
    set_seed(spec.train.seed)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora)).train()
    optimizer = torch.optim.AdamW(weight_decay_groups(model, 0.1), lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
    schedule = scheduler_factory(spec.scheduler, 4)(optimizer)
    rows = [torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    ids, losses = torch.cat(rows), []
    for _ in range(4):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run_cases(forked: ForkedRanks, folder: Path, cases: list[dict[str, Any]], ranks: int = 2) -> dict[str, Any]:
    """Run `jobs/model_cases.py`; what it tells, by case."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    forked.run(JOBS / "model_cases.py", str(folder / "cases.json"), str(folder / "out.json"), ranks=ranks)
    return dict(json.loads((folder / "out.json").read_text()))


def zero(stage: int, *offloaded: str) -> dict[str, Any]:
    """The `zero` section."""
    return {"stage": stage, **{f"offload_{what}": {"device": "cpu", "pin_memory": False} for what in offloaded}}


BIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
}


def make_big_model(folder: Path, **changes: Any) -> Path:
    """A Llama of 502 million parameters in bf16, 1.0 GB in files of 200 MB, or one with `changes` in its
    configuration: noise, so that a wrong place shows."""
    config = AutoConfig.for_model(**BIG | changes, dtype="bfloat16")
    with torch.device("meta"):
        shapes = {n: t.shape for n, t in AutoModelForCausalLM.from_config(config).state_dict().items()}
    noise = torch.randn(1 << 22).mul_(0.02).to(torch.bfloat16)
    where: dict[str, str] = {}
    held: dict[str, torch.Tensor] = {}
    for count, (name, shape) in enumerate(shapes.items(), start=1):
        copies = noise.roll(7 * count).repeat(-(-shape.numel() // noise.numel()))
        held[name] = copies[: shape.numel()].view(shape)
        if sum(t.numel() for t in held.values()) > 100_000_000 or count == len(shapes):
            file = f"model-{len(set(where.values())) + 1:05d}.safetensors"
            save_file({n: t.contiguous() for n, t in held.items()}, folder / file, metadata={"format": "pt"})
            where |= dict.fromkeys(held, file)
            held = {}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    config.save_pretrained(folder)
    return folder
