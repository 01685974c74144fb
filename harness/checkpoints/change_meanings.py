# SPDX-License-Identifier: Apache-2.0
"""The meaning of a change of each key of a run spec between a save and a resume.

`tests/docs/resume_page.py` makes a page of it. `tests/training/checkpoint/test_allowed_changes.py` shows for the keys
that `--allow-change` allows that a run takes its next step by the new value.
"""

from __future__ import annotations

from typing import Literal

from harness.facts.key_effects import find_effect

Meaning = Literal["shape", "effect", "blocks", "fixed", "notable", "harmless"]
"""`shape`: the checkpoint is resharded. `effect`: batch and schedule, of which the effect is compared and not the key.
`blocks`: refused, and applied where `--allow-change` allows it. `fixed`: refused. `notable`: free, and reported.
`harmless`: free.
"""

BATCH_KEYS = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
SCALE_KEYS = ("loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")

MEANINGS: dict[str, Meaning] = {
    # the layout of state over ranks: DeepSpeed cannot load its own shards into another layout
    "zero.stage": "shape",
    "zero.round_robin_gradients": "shape",
    "zero.sub_group_size": "shape",
    "parallel": "shape",
    "world": "shape",
    "dtype": "shape",
    # model and data: a position in the data means nothing in another order
    "model": "blocks",
    "data": "blocks",
    "optimizer": "blocks",
    "precision": "blocks",
    "train": "blocks",
    "dpo": "blocks",
    "kto": "blocks",
    "classification": "blocks",
    "reward": "blocks",
    # its states are of the parameters and of the optimizer that saved them
    "optimizer.type": "fixed",
    "objective": "fixed",
    "model.lora": "fixed",
    "model.quantization": "fixed",
    "deepspeed.optimizer.type": "fixed",
    **dict.fromkeys(
        [f"model.lora.{name}" for name in ("lora_alpha", "lora_dropout", "use_rslora", "alpha_pattern")], "blocks"
    ),
    # the hash of the content decides; the file may have moved
    "model.name_or_path": "harmless",
    "model.revision": "harmless",
    "model.tokenizer": "harmless",
    "model.trust_remote_code": "harmless",
    "data.train": "harmless",
    "data.eval": "harmless",
    "plugins.file": "harmless",
    "plugins.script": "harmless",
    **dict.fromkeys(("data.cache_dir", "data.num_proc", "data.streaming", "data.chat_template"), "harmless"),
    **dict.fromkeys(("data.on_bad_record", "data.max_bad_records"), "harmless"),
    # the state of the checkpoint replaces what these decide
    "model.random_init": "harmless",
    "model.lora.init_lora_weights": "harmless",
    "precision.initial_scale_power": "harmless",
    # what a run does is compared, in whatever keys it was written
    **dict.fromkeys((f"train.{name}" for name in (*BATCH_KEYS, "max_steps", "num_train_epochs")), "effect"),
    "scheduler": "effect",
    # the same steps, computed in another way
    "model.attn_implementation": "notable",
    "data.pad_to_multiple_of": "notable",
    **dict.fromkeys((f"train.torch_compile{end}" for end in ("", "_backend")), "notable"),
    "train.gradient_checkpointing_use_reentrant": "notable",
    "train.offload_activations": "notable",
    "train.gradient_checkpointing": "harmless",
    "train.loss_chunk_size": "harmless",
    "train.mlp_tile_size": "harmless",
    "zero": "notable",
    "tuned_defaults": "notable",
    "choices": "notable",  # its name in checkpoints that were saved before it had this one
    # what ends a run, what it logs and keeps
    **dict.fromkeys(
        (f"train.{name}" for name in ("on_nonfinite", "max_skipped_steps", "max_consecutive_skipped_steps")), "harmless"
    ),
    **dict.fromkeys(("name", "checkpoint", "eval", "export", "logging", "launch", "cluster", "ignore"), "harmless"),
    **dict.fromkeys(("telemetry", "allow_undocumented"), "harmless"),
}
"""Dotted key or section -> the meaning of a change. The longest match decides; a key without one blocks."""

FIXED_REASONS = {
    "optimizer.type": "the states of one optimizer are not those of another",
    "deepspeed.optimizer.type": "the states of one optimizer are not those of another",
    "objective": "the checkpoint has the states of a model for another loss",
    "model.lora": "the checkpoint has the adapters of its own `model.lora`",
    "model.quantization": "the checkpoint has the frozen weights as they were quantized",
    "deepspeed.scheduler": "the saved state of one kind of schedule is not that of another",
    "optimizer": "the schedule of torch goes on from the rate that the checkpoint has",
}
"""Key or section -> why a resume cannot apply a change of it."""


def meaning_of(key: str) -> Meaning:
    """The meaning of a change of this dotted key."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        meaning = MEANINGS.get(".".join(parts[:length]))
        if meaning:
            return meaning
    if parts[0] == "deepspeed":
        effect = find_effect(key)
        return "notable" if effect is not None and effect.decides != "training" else "blocks"
    return "blocks"


def reason_of(key: str) -> str:
    """The reason why a change of a `fixed` key cannot be applied."""
    parts = key.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(FIXED_REASONS[name] for name in names if name in FIXED_REASONS)
