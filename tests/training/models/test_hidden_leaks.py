# SPDX-License-Identifier: Apache-2.0
"""Five leaks between packed documents that hide in one place of a deep model, written without a look at the questions.

Each is a Llama with one fault in one module of one layer, as new architectures have them. The same model without the
fault keeps documents apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.model_behavior import ask_copy


def make_llama(layers: int = 6) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return model


def wrap(module: Any, change: Callable[..., torch.Tensor]) -> None:
    """Replace the output of a module by `change(input, output)`."""
    forward = module.forward
    module.forward = lambda value, *args, **kwargs: change(value, forward(value, *args, **kwargs))


def short_convolution(model: Any) -> None:
    """A depthwise convolution over two tokens, on one channel of the values of the last layer."""

    def convolve(_: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[:, 1:, 3] += 0.05 * out[:, :-1, 3]
        return out

    wrap(model.model.layers[-1].self_attn.v_proj, convolve)


def gated_state(model: Any) -> None:
    """A state that decays by half a token and that a gate lets in for few tokens, in the MLP of a middle layer."""

    def scan(value: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(4 * value[..., :1] - 4)
        state, states = torch.zeros_like(out[:, 0]), []
        for t in range(out.shape[1]):
            state = 0.5 * state + gate[:, t] * out[:, t]
            states.append(state)
        return out + 0.1 * torch.stack(states, dim=1)

    wrap(model.model.layers[3].mlp, scan)


def state_across_rows(model: Any) -> None:
    """The last token of a row, carried into the first of the next row of the batch, as states in a buffer are."""

    def carry(_: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[1:, 0] += 0.1 * out[:-1, -1]
        return out

    wrap(model.model.layers[2].mlp, carry)


def distance_bias(model: Any) -> None:
    """Relative positions counted from the beginning of the row: a bias by the distance to token 0."""

    def add_bias(_: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out + 0.02 * torch.log1p(torch.arange(out.shape[1]))[None, :, None]

    wrap(model.model.layers[4].self_attn.q_proj, add_bias)


def token_shift_at_borders(model: Any) -> None:
    """A normalisation by the running mean of all tokens before, which differs most just behind a border."""

    def normalise(_: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        counts = torch.arange(1, out.shape[1] + 1)[None, :, None]
        return out - 0.05 * out.cumsum(1) / counts

    wrap(model.model.layers[1].post_attention_layernorm, normalise)


LEAKS = [short_convolution, gated_state, state_across_rows, distance_bias, token_shift_at_borders]


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_a_hidden_leak_is_found(leak: Callable[[Any], None]) -> None:
    model = make_llama()
    assert (ask_copy(model).causal, ask_copy(model).apart) == (True, True)
    leak(model)
    answers = ask_copy(model)
    assert answers.apart is False, answers


def test_rounding_that_a_norm_enlarges_is_no_leak() -> None:
    """As in `gemma3n`, whose norms of two numbers that nearly cancel make 1e-4 of it."""
    model = make_llama()

    def enlarge(_: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out + 3e3 * (out + 1e3 - 1e3 - out)

    wrap(model.model.layers[1].self_attn.v_proj, enlarge)
    assert ask_copy(model).apart is True
