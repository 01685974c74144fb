# SPDX-License-Identifier: Apache-2.0
"""A decoder of its own code, as the Hub has them, in twenty ways that all keep packed documents apart.

A document begins where a position is 0. Each way is made to look like a leak: it sums over time, convolves, keeps a
state, counts, or reads positions, and stops at each document's beginning.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad, scaled_dot_product_attention, silu
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput

WAYS = """
alibi sliding_window full_and_window experts shared_layers parallel_block learned_positions grouped_queries
latent_attention sandwich_norms tied_and_capped gated_attention partial_rotary conv_in_documents decaying_state
relative_buckets value_residual sinks position_temperature token_shift
""".split()


class OwnConfig(PreTrainedConfig):
    """`way`: one of WAYS."""

    model_type = "own_clean"

    def __init__(self, way: str = "alibi", **fields: Any) -> None:
        """Sizes of a small model, unless given."""
        self.way = way
        sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8}
        sizes |= {"num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 512, "sliding_window": 128}
        for name, size in sizes.items():
            setattr(self, name, fields.pop(name, size))
        super().__init__(**fields)


class Norm(nn.Module):
    """RMSNorm with a weight around 0, as Gemma has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


def rotate(x: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
    """(rows, heads, length, head): the first `width` numbers of each head, by the place in the document."""
    angles = places[:, None, :, None] * 10000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    even, odd = x[..., 0:width:2], x[..., 1:width:2]
    turned = torch.stack([even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], -1)
    return torch.cat([turned.flatten(-2), x[..., width:]], -1)


class Attention(nn.Module):
    """Causal, inside documents."""

    def __init__(self, config: OwnConfig, index: int) -> None:
        super().__init__()
        self.way, self.index, self.window = config.way, index, config.sliding_window
        self.heads, width = config.num_attention_heads, config.hidden_size
        self.head = width // self.heads
        self.groups = self.heads // 2 if self.way == "grouped_queries" else self.heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, self.groups * self.head, bias=False) for _ in range(2))
        self.out, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.down, self.up = nn.Linear(width, width // 4, bias=False), nn.Linear(width // 4, 2 * width, bias=False)
        self.q_norm, self.k_norm = Norm(self.head), Norm(self.head)
        self.sink = nn.Parameter(torch.zeros(self.heads))
        self.bias = nn.Embedding(32, self.heads)
        self.first: Any = None

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, length, width) to (rows, heads, length, head)."""
        return x.unflatten(-1, (-1, self.head)).transpose(1, 2)

    def biases(self, distance: torch.Tensor) -> torch.Tensor:
        """(rows, heads, length, length), from distances (rows, 1, length, length)."""
        if self.way == "alibi":
            return -(2.0 ** -torch.arange(1, self.heads + 1, device=distance.device)[:, None, None]) * distance
        if self.way == "relative_buckets":
            return self.bias(distance.clamp(0, 31)[:, 0]).permute(0, 3, 1, 2)
        return torch.zeros_like(distance, dtype=torch.float32).repeat(1, self.heads, 1, 1)

    def forward(self, x: torch.Tensor, places: torch.Tensor, same: torch.Tensor, first: Any) -> torch.Tensor:
        """`same`: (rows, length, length), of one document and not later. `first`: the values of the first layer."""
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.way == "latent_attention":
            k, v = (self.split(part) for part in self.up(self.down(x)).chunk(2, -1))
        if self.way == "grouped_queries":
            q, k = self.q_norm(q), self.k_norm(k).repeat_interleave(2, 1)
            v = v.repeat_interleave(2, 1)
        self.first = v
        if self.way == "value_residual" and first is not None:
            v = 0.5 * (v + first)
        distance = places[:, None, :, None] - places[:, None, None, :]
        turns = self.way not in ("alibi", "relative_buckets", "learned_positions")
        if turns and not (self.way == "full_and_window" and self.index % 2):
            width = self.head // 2 if self.way in ("partial_rotary", "latent_attention") else self.head
            q, k = rotate(q, places, width), rotate(k, places, width)
        if self.way == "position_temperature":
            q = q * (1 + 0.1 * torch.log1p(places // 8))[:, None, :, None]
        if self.way == "sliding_window" or (self.way == "full_and_window" and self.index % 2):
            same = same & (distance[:, 0] < self.window)
        scores = self.biases(distance).masked_fill(~same[:, None], float("-inf"))
        if self.way == "sinks":
            sinks = self.sink[None, :, None, None].expand(*scores.shape[:3], 1)
            k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
            scores = torch.cat([scores, sinks], -1)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=scores).transpose(1, 2).flatten(2)
        if self.way == "gated_attention":
            mixed = mixed * self.gate(x).sigmoid()
        return self.out(mixed)


class Experts(nn.Module):
    """Two of eight for each token; one that all take."""

    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.router = nn.Linear(width, 8, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width)) for _ in range(9)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        shares = torch.zeros(*x.shape[:2], 8, device=x.device).scatter(-1, chosen, weights)
        routed = sum(shares[..., i, None] * expert(x) for i, expert in enumerate([*self.experts][:8]))
        return routed + self.experts[8](x)


class Mixing(nn.Module):
    """Over time, by other means than attention, inside documents."""

    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.way, width = config.way, config.hidden_size
        self.kernel = nn.Parameter(torch.randn(4, width) / 2)
        self.share = nn.Parameter(torch.full((width,), 0.5))
        self.decay = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        if self.way == "conv_in_documents":
            shifted = [pad(x, (0, 0, n, 0))[:, : x.shape[1]] * (places >= n)[..., None] for n in range(4)]
            return x + sum(part * self.kernel[n] for n, part in enumerate(shifted))
        if self.way == "token_shift":
            before = pad(x, (0, 0, 1, -1)) * (places > 0)[..., None]
            return x + self.share * (before - x)
        if self.way == "decaying_state":
            state, states = torch.zeros_like(x[:, 0]), []
            keep = self.decay(x).sigmoid() * (places > 0)[..., None]
            for t in range(x.shape[1]):
                state = keep[:, t] * state + (1 - keep[:, t]) * x[:, t]
                states.append(state)
            return x + torch.stack(states, 1)
        return x


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: OwnConfig, index: int) -> None:
        super().__init__()
        self.way, width = config.way, config.hidden_size
        self.attention, self.mixing = Attention(config, index), Mixing(config)
        self.norms = nn.ModuleList(Norm(width) if n % 2 else nn.LayerNorm(width, bias=False) for n in range(4))
        inner = config.intermediate_size
        self.gate, self.up, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)
        self.experts = Experts(config) if self.way == "experts" else None

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP."""
        return self.experts(x) if self.experts is not None else self.down(silu(self.gate(x)) * self.up(x))

    def forward(self, x: torch.Tensor, places: torch.Tensor, same: torch.Tensor, first: Any) -> torch.Tensor:
        """Of the same shape."""
        y = self.norms[0](self.mixing(x, places))
        attended = self.attention(y, places, same, first)
        if self.way == "parallel_block":
            return x + attended + self.feed(y)
        if self.way == "sandwich_norms":
            x = x + self.norms[1](attended)
            return x + self.norms[3](self.feed(self.norms[2](x)))
        x = x + attended
        return x + self.feed(self.norms[2](x))


class OwnForCausalLM(PreTrainedModel, GenerationMixin):
    """The whole model."""

    config_class = OwnConfig

    def __init__(self, config: OwnConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        count = 1 if config.way == "shared_layers" else config.num_hidden_layers
        self.layers = nn.ModuleList(Block(config, index) for index in range(count))
        self.norm, self.head = Norm(config.hidden_size), nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, position_ids: Any = None, labels: Any = None, **_: Any
    ) -> CausalLMOutput:
        """Logits for the next token."""
        rows, length = input_ids.shape
        whole = torch.arange(length, device=input_ids.device).expand(rows, length)
        places = whole if position_ids is None else position_ids
        document = (places == 0).cumsum(-1)
        same = (document[:, :, None] == document[:, None]) & (whole[:, :, None] >= whole[:, None])
        x = self.embed(input_ids)
        if self.config.way == "learned_positions":
            x = x + self.places(places)
        first = None
        for index in range(self.config.num_hidden_layers):
            layer = self.layers[index % len(self.layers)]
            x = layer(x, places, same, first)
            first = layer.attention.first if first is None else first
        x = self.norm(x)
        tied = self.config.way == "tied_and_capped"
        logits = 30 * torch.tanh(x @ self.embed.weight.T / 30) if tied else self.head(x)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits)
