# SPDX-License-Identifier: Apache-2.0
"""A tiny model, its tokenizer and preference records, the same for the harness and for TRL's own environment
(`benchmarks/trl_figures.py`). Imports nothing of the harness.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

_CHARACTERS = "abcdefghijklmnopqrstuvwxyz .,?!"
SETTINGS = {"learning_rate": 1e-3, "beta": 0.1, "max_length": 48}
STEPS = 20
ADAM = {
    "optimizer": {
        "type": "AdamW",
        "params": {
            "lr": SETTINGS["learning_rate"],
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.0,
            "torch_adam": True,
            "fused": True,
        },
    }
}
"""Of DeepSpeed's configuration: torch's AdamW, fused, as TRL takes it. That of single tensors rounds otherwise, and
DeepSpeed's Adam for CPUs has bias corrections in fp32: its updates differ by up to 1e-5 in the first steps."""
EXACT_RUNS = (
    "grid-sigmoid-1",
    "grid-ipo-1",
    "grid-norm-4",
    "grid-smooth-1",
    "grid-rpo-2-lora",
    "grid-kto-4-lora",
    "grid-reward-1",
)
"""Each loss, with LoRA and accumulation among them: those whose gradients in fp64 are in TRL's figures."""
EXACT_STEPS = 3
"""The steps of these."""


def save_model(folder: Path, num_labels: int | None = None) -> None:
    """Write a Llama of two layers, seeded, in fp32, with a tokenizer of one token a character; with a head over so many
    labels where these are given.
    """
    names = ["<pad>", "</s>", "<unk>", *_CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"."), "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(5)
    if num_labels is not None:
        config.num_labels = num_labels
    kind = LlamaForCausalLM if num_labels is None else LlamaForSequenceClassification
    kind(config).float().save_pretrained(folder)


def pairs(count: int = 16) -> list[dict[str, str]]:
    """Records with `prompt`, `chosen` and `rejected` of different lengths."""
    draw = random.Random(7)  # noqa: S311
    text = lambda low, high: "".join(draw.choice(_CHARACTERS[:26]) for _ in range(draw.randint(low, high)))  # noqa: E731
    return [{"prompt": text(3, 12) + "?", "chosen": text(2, 5), "rejected": text(2, 5)} for _ in range(count)]


def scored() -> list[dict[str, Any]]:
    """The same records with margins."""
    return [pair | {"margin": 0.25 * (i % 3)} for i, pair in enumerate(pairs())]


def labelled(count: int = 16) -> list[dict[str, Any]]:
    """Records with `prompt`, `completion` and `label`."""
    return [
        {"prompt": pair["prompt"], "completion": pair["chosen" if i % 3 else "rejected"], "label": bool(i % 3)}
        for i, pair in enumerate(pairs(count))
    ]


def drawn_log_probs(seed: int = 3, rows: int = 6) -> tuple[torch.Tensor, ...]:
    """Of a policy and of a reference for `rows` chosen answers and then as many rejected ones, (2 x rows, 9) each, and
    the mask of the answers' tokens, (2 x rows, 10): none has the first token.
    """
    generator = torch.Generator().manual_seed(seed)
    policy = -3 * torch.rand(2 * rows, 9, generator=generator)
    reference = -3 * torch.rand(2 * rows, 9, generator=generator)
    lengths = torch.randint(1, 8, (2 * rows,), generator=generator)
    starts = torch.randint(1, 3, (2 * rows,), generator=generator)
    positions = torch.arange(10)[None, :]
    mask = ((positions >= starts[:, None]) & (positions < (starts + lengths)[:, None])).long()
    return policy * mask[:, 1:], reference * mask[:, 1:], mask


def share_batch(method: str, micro_batch: int, accumulation: int, ranks: int) -> tuple[int, int]:
    """(micro-batch, accumulation) of each rank where so many share a micro-batch, or the accumulation where it is one
    row. TRL's KTO takes no single row: its ranks have the micro-batch each.
    """
    if method == "kto":
        return micro_batch, accumulation
    return (micro_batch // ranks, accumulation) if micro_batch >= ranks else (micro_batch, accumulation // ranks)


def set_adapters(model: torch.nn.Module) -> None:
    """Give each `lora_A` drawn values, since PEFT draws them after whatever was drawn before."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_A" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
