# SPDX-License-Identifier: Apache-2.0
"""Facts about objectives, which gates, checks and plans read; `runtime/objectives/` has the objectives themselves."""

from __future__ import annotations

from typing import NamedTuple

_DEGREES = ("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size", "parallel.sequence_parallel_size")

_OF_VOCABULARY = ("train.loss_chunk_size", "train.mlp_tile_size", "model.quantization", "eval.samples")


def _columns(names: str) -> tuple[str, ...]:
    return tuple(f"data.{name}_column" for name in names.split())


class ObjectiveFacts(NamedTuple):
    """`unread`: keys that a run with this objective would ignore or cannot do; gates of its own may name others.
    `loads_model`: does it train a model of `transformers` on the records of `data`? `has_label_head`: is that model's
    head one over labels, and not over the vocabulary? `is_paired`: is a row two sequences? `unit`: what the loss is
    the mean of.
    """

    unread: tuple[str, ...] = ()
    loads_model: bool = True
    has_label_head: bool = False
    is_paired: bool = False
    unit: str = "token"


FACTS: dict[str, ObjectiveFacts] = {
    "causal_lm": ObjectiveFacts(_columns("chosen rejected label")),
    "dpo": ObjectiveFacts(_columns("text completion label"), is_paired=True, unit="pair"),
    "kto": ObjectiveFacts(_columns("text"), unit="answer"),
    "classification": ObjectiveFacts(
        _OF_VOCABULARY + _columns("prompt completion chosen rejected"), True, True, unit="text"
    ),
    "reward": ObjectiveFacts(_OF_VOCABULARY + _columns("text completion label"), True, True, True, "pair"),
    "custom": ObjectiveFacts(
        unread=(
            *(f"model.{name}" for name in ("name_or_path", "revision", "config", "random_init", "tokenizer", "lora")),
            *(f"model.{name}" for name in ("quantization", "attn_implementation", "trust_remote_code")),
            *(f"data.{name}" for name in ("train", "eval", "packing", "pad_to_multiple_of", "chat_template")),
            *(f"train.{name}" for name in ("loss_chunk_size", "mlp_tile_size", "gradient_checkpointing")),
            "train.offload_activations",
            "eval.samples",
            *(f"data.{name}" for name in ("eval_fraction", "format", "excess_length_strategy", "assistant_only_loss")),
            *(f"data.{name}" for name in ("completion_only_loss", "num_proc", "cache_dir", "streaming")),
            *(f"data.{name}" for name in ("on_bad_record", "max_bad_records")),
            *_DEGREES,
        ),
        loads_model=False,
        unit="row",
    ),
}


def facts_of(objective: str) -> ObjectiveFacts:
    """The facts of an objective."""
    return FACTS[objective]
