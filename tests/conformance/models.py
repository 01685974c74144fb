# SPDX-License-Identifier: Apache-2.0
"""The small models that jobs train, and their data: both follow from the job alone, on every rank the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VOCABULARY = 128
LENGTH = 16
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
    },
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": VOCABULARY,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "mixtral": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
    },
}


def hf_config(model: dict[str, Any]) -> Any:
    """The `transformers` configuration of a job's model: a shape of `SHAPES` with the job's own fields on top."""
    from transformers import AutoConfig

    fields = {k: v for k, v in model.items() if k != "kind"}
    kind = model.get("kind", "llama")
    known = SHAPES.get(fields.pop("model_type", kind), SHAPES.get(kind, {}))
    config = AutoConfig.for_model(kind, **{**known, **fields})
    config.use_cache = False
    config._attn_implementation = fields.get("attn_implementation", "sdpa")
    return config


def build(model: dict[str, Any], seed: int = 0) -> nn.Module:
    """A model with the weights of this seed, in fp32 and training mode."""
    torch.manual_seed(seed)
    if model.get("kind") == "mlp":
        return Plain()
    if model.get("kind") == "pipe":
        return nn.Sequential(*[layer(*arguments) for layer, arguments in pipe_layers(model)])
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(hf_config(model), dtype=torch.float32).train()


class Plain(nn.Module):
    """A model that is no Hugging Face one, with their call."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.hidden = nn.Linear(32, 64)
        self.head = nn.Linear(64, VOCABULARY)
        self.register_buffer("scale", torch.ones(1))  # `data_types.buffer_dtype` is read where there is a buffer
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)  # as in a Llama, so that bf16 shows a step of 0.001

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(torch.relu(self.hidden(self.embedding(input_ids)))) * self.scale
        loss = None if labels is None else next_token_loss(logits, labels)
        return Output(loss=loss, logits=logits)


class Output(dict[str, Any]):
    """A dict, in which DeepSpeed finds the tensors, with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each position against the next token."""
    return nn.functional.cross_entropy(logits[:, :-1].float().reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


class Embed(nn.Module):
    """First layer of the pipeline; each layer draws its weights from a seed of its own, whatever stage it is on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(VOCABULARY, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Block(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(x))


class Head(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(32, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def pipe_layers(model: dict[str, Any]) -> list[tuple[type[nn.Module], tuple[int]]]:
    """(class, arguments) of each layer of the pipeline model."""
    count = int(model.get("layers", 4))
    blocks = [(Block, (100 + i,)) for i in range(count)]
    return [(Embed, (99,)), *blocks, (Head, (999,))]


def pipeline(model: dict[str, Any], stages: int) -> nn.Module:
    """The same layers as a PipelineModule of so many stages."""
    from deepspeed.pipe import LayerSpec, PipelineModule

    layers = [LayerSpec(layer, *arguments) for layer, arguments in pipe_layers(model)]
    return PipelineModule(
        layers=layers,
        num_stages=stages,
        loss_fn=next_token_loss,
        partition_method=model.get("partition_method", "uniform"),
    )


def batch(step: int, micro: int, replica: int, rows: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Token ids (rows, LENGTH) of one micro-batch of one data-parallel rank."""
    generator = torch.Generator().manual_seed(1_000_003 * step + 1_009 * micro + replica + 17)
    return torch.randint(0, min(64, vocabulary), (rows, LENGTH), generator=generator)
