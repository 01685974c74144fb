# SPDX-License-Identifier: Apache-2.0
"""The layers that recompute their activations: how many, the shares of the work that is repeated, words for both."""

from __future__ import annotations

from typing import Any

from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.weights.flops import RecomputeShares


def is_recomputed(index: int, settings: PlanSettings) -> bool:
    """Does this layer of a pipeline stage, counted from 0, compute its activations again?"""
    return settings.checkpointing and index % settings.checkpoint_every == 0


def count_recomputed(num_layers: int, every: int) -> int:
    """Layers 0, `every`, 2 x `every` and so on of so many."""
    return -(-num_layers // every)


def tiles_mlp(settings: PlanSettings) -> bool:
    """Does the MLP of a layer run in more than one tile?"""
    return 0 < settings.mlp_tile_size < settings.tokens_per_micro_batch


def recompute_shares(settings: PlanSettings, num_layers: int) -> RecomputeShares:
    """The shares for a model of so many layers, cut into equal stages."""
    every = settings.checkpoint_every if settings.checkpointing else None
    layers = -(-num_layers // settings.pipeline_parallel_size)
    attention, segment = settings.keeps_attention, settings.layers_per_segment
    return shares_of_layers(layers, every, segment, keeps_attention=attention, in_tiles=tiles_mlp(settings))


def most_inputs(num_layers: int, layers_per_segment: int) -> tuple[int, int]:
    """Inputs of layers: those that stay from forward to backward, and the most that a segment adds to them while it is
    differentiated, the last one or a whole one before it.
    """
    kept = -(-num_layers // layers_per_segment)
    last = num_layers - (kept - 1) * layers_per_segment
    return kept, max(last - 1, layers_per_segment - 2 if kept > 1 else 0)


def shares_of_layers(
    num_layers: int, every: int | None, layers_per_segment: int = 1, *, keeps_attention: bool, in_tiles: bool = False
) -> RecomputeShares:
    """The shares of so many layers of one rank of which every K-th recomputes, or none. All but the last layer of a
    segment are computed once more, for the inputs of those behind them.

    A tile computes its first two products again in the backward pass. A layer that recomputes runs its tiles too, all
    but the end of the last one.
    """
    share = count_recomputed(num_layers, every) / num_layers if every else 0.0
    if every and layers_per_segment > 1:
        share += 1 - count_recomputed(num_layers, layers_per_segment) / num_layers
    return RecomputeShares(share, 0.0 if keeps_attention else share, 2 + share if in_tiles else 0.0)


def with_checkpointing(settings: PlanSettings, *, checkpointing: bool) -> PlanSettings:
    """The settings with every layer recomputed, or none."""
    return settings.with_values(
        checkpointing=checkpointing, checkpoint_every=1, layers_per_segment=1, keeps_attention=False
    )


def list_checkpointing(settings: PlanSettings) -> list[PlanSettings]:
    """The settings with no layer recomputed, with every layer, and as they are."""
    choices = [with_checkpointing(settings, checkpointing=each) for each in (False, True)]
    return choices if settings in choices else [*choices, settings]


def checkpointing_value(settings: PlanSettings) -> bool | dict[str, Any]:
    """The value of `train.gradient_checkpointing` for these settings."""
    if not settings.checkpointing:
        return False
    value: dict[str, Any] = {}
    if settings.checkpoint_every > 1:
        value["recompute_every"] = settings.checkpoint_every
    if settings.layers_per_segment > 1:
        value["layers_per_segment"] = settings.layers_per_segment
    if settings.keeps_attention:
        value["keep"] = "attention"
    return value or True


def describe_checkpointing(settings: PlanSettings, word: str = "gradient checkpointing") -> str:
    """`gradient checkpointing of every 2nd layer, attention kept`, or `no gradient checkpointing`."""
    if not settings.checkpointing:
        return f"no {word}"
    of_layers = f" of every {_ordinal(settings.checkpoint_every)} layer" if settings.checkpoint_every > 1 else ""
    if settings.layers_per_segment > 1:
        of_layers = f" in segments of {settings.layers_per_segment} layers"
    return f"{word}{of_layers}" + (", attention kept" if settings.keeps_attention else "")


def _ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{suffix}"
