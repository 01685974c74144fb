# SPDX-License-Identifier: Apache-2.0
"""Settings that a resume may change: a spec that is saved, and what each key becomes. Needs no torch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.training.model_shapes import LLAMA

STEPS, SAVED, LENGTH = 6, 3, 32

BASE: dict[str, Any] = {
    "model": {},
    "data": {"max_length": LENGTH, "eval_fraction": 0.0},
    "train": {"max_steps": STEPS, "per_device_train_batch_size": 2, "max_grad_norm": 0.5, "seed": 7},
    "optimizer": {"type": "adamw", "learning_rate": 3e-3, "weight_decay": 1.0, "betas": [0.9, 0.95], "eps": 1e-6},
    "scheduler": {"type": "cosine", "warmup_steps": 2},
    "checkpoint": {"save_steps": SAVED},
}
"""The spec of a run that is saved. A change is laid over it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is written instead, by dotted key; `allowed` where it is another key than those."""

    values: Mapping[str, Any]
    base: str = "adamw"
    allowed: tuple[str, ...] = ()
    bound: float = 2e-3
    """Largest difference of the update, as a share of its norm. In fp32: a bias correction in fp32, and sums in another
    order."""

    @property
    def name(self) -> str:
        return "+".join(self.values).replace(".", "-") or "nothing"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of `--allow-change`."""
        return self.allowed or tuple(self.values)


def lay_over(spec: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with other values of dotted keys."""
    result = copy.deepcopy(dict(spec))
    for key, value in values.items():
        section = result
        *path, last = key.split(".")
        for name in path:
            section = section.setdefault(name, {})
        section[last] = copy.deepcopy(value)
    return result


MUON = {"type": "muon", "learning_rate": 0.02, "momentum": 0.9}
"""DeepSpeed clips Muon's update instead of the gradient: without clipping, this is the optimizer of its paper."""
BASES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd": {"optimizer.type": "sgd", "optimizer.momentum": 0.9, "optimizer.learning_rate": 0.1},
    "muon": {**{f"optimizer.{key}": value for key, value in MUON.items()}, "train.max_grad_norm": 0.0},
    "records": {"data.format": "prompt-completion"},
    "texts": {"data.format": "text", "data.text_column": "prompt"},
    "chats": {"data.format": "messages"},
    "fp16": {"precision.fp16": True, "precision.loss_scale": 128.0},
    "fp16-dynamic": {"precision.fp16": True, "precision.initial_scale_power": 6},
    "json-schedule": {
        "deepspeed.scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 3e-3, "warmup_num_steps": 4, "warmup_type": "linear"},
        }
    },
    "json-optimizer": {
        "deepspeed.optimizer": {
            "type": "AdamW",
            "params": {"lr": 3e-3, "weight_decay": 1.0, "betas": [0.9, 0.95], "eps": 1e-6},
        }
    },
    "config": {
        "model.name_or_path": None,
        "model.tokenizer": "bytes",
        "model.config": {"model_type": "llama", "tie_word_embeddings": True, **LLAMA},
    },
    "frozen": {"model.freeze": ["model.layers.0.*"]},
    "lora": {"model.lora": {"r": 4, "lora_alpha": 8.0, "target_modules": ["q_proj", "v_proj"]}},
}
ALL_AT_ONCE = Change(
    {
        "optimizer.learning_rate": 1e-3,
        "optimizer.weight_decay": 0.5,
        "optimizer.betas": [0.8, 0.9],
        "optimizer.eps": 1e-3,
        "train.max_grad_norm": 0.05,
        "scheduler.type": "linear",
    }
)
CHANGES = [
    Change({}),
    Change({"optimizer.learning_rate": 3e-4}),
    Change({"optimizer.weight_decay": 2.0}),
    Change({"optimizer.weight_decay": 0.0}),
    Change({"optimizer.betas": [0.8, 0.9]}),
    Change({"optimizer.eps": 1e-3}),
    Change({"optimizer.momentum": 0.3}, "sgd"),
    Change({"optimizer.learning_rate": 0.005}, "muon", bound=0.03),
    Change({"optimizer.momentum": 0.5}, "muon", bound=0.03),
    Change({"optimizer.adam_learning_rate": 0.001}, "muon", bound=0.03),
    Change({"train.max_grad_norm": 0.01}),
    Change({"train.max_grad_norm": 0.0}),
    Change({"train.max_steps": 4}),
    Change({"scheduler.warmup_steps": 5}),
    Change({"scheduler.warmup_ratio": 0.9, "scheduler.warmup_steps": None}, allowed=("scheduler.warmup_ratio",)),
    Change({"scheduler.type": "inverse_sqrt"}),
    Change({"scheduler.min_lr_ratio": 0.5}),
    Change({"scheduler.type": "cosine_with_restarts", "scheduler.num_cycles": 3}),
    Change({"scheduler.type": "polynomial", "scheduler.power": 3.0}),
    Change({"scheduler.type": "warmup_stable_decay", "scheduler.decay_steps": 4}, allowed=("scheduler",)),
    Change({"scheduler.type": "warmup_stable_decay", "scheduler.decay_ratio": 0.6}, allowed=("scheduler",)),
    Change(
        {"scheduler.type": "warmup_stable_decay", "scheduler.decay_steps": 4, "scheduler.decay_type": "1-sqrt"},
        allowed=("scheduler",),
    ),
    Change({"train.global_batch_size": 8}),
    Change({"train.seed": 8}),
    Change({"data.shuffle": False}),
    Change({"data.max_length": 16}, allowed=("data",)),
    Change({"data.max_length": 16, "data.packing": True}, "records", ("data",)),
    Change({"data.packing": True}, "records", ("data",)),
    Change({"data.group_by_length": False}, "records"),
    Change({"data.completion_only_loss": False}, "records", ("data",)),
    Change({"data.completion_column": "note"}, "records", ("data",)),
    Change({"data.prompt_column": "note"}, "records", ("data",)),
    Change({"data.eval_fraction": 0.4}, "records", ("data",)),
    Change({"data.max_length": 12, "data.excess_length_strategy": "drop"}, "records", ("data",)),
    Change({"data.format": "text", "data.text_column": "note"}, "records", ("data",)),
    Change({"data.text_column": "note"}, "texts", ("data",)),
    Change({"data.assistant_only_loss": False}, "chats", ("data",)),
    Change({"data.messages_column": "turns"}, "chats", ("data",)),
    Change({"model.freeze": ["model.layers.*"]}),
    Change({"model.train_only": ["model.layers.*"]}),
    Change({"model.config.rope_parameters": {"rope_type": "default", "rope_theta": 10.0}}, "config", ("model.config",)),
    Change({"train.per_device_train_batch_size": 3}, allowed=("train.global_batch_size",)),
    Change({"train.gradient_accumulation_steps": 2}, allowed=("train.global_batch_size",)),
    Change({"train.num_train_epochs": 0.5, "train.max_steps": None}, allowed=("train",)),
    Change({"precision.bf16": True}, bound=0.2),
    Change({"precision.fp16": True}, bound=0.2),
    Change({"precision.loss_scale": 512.0}, "fp16", bound=0.2),
    Change({"deepspeed.scheduler.params.warmup_max_lr": 1e-3}, "json-schedule"),
    Change({"deepspeed.optimizer.params.lr": 1e-3}, "json-optimizer"),
    Change({"deepspeed.optimizer.params.betas": [0.8, 0.9]}, "json-optimizer"),
    Change({"model.lora.lora_alpha": 64.0}, "lora"),
    Change({"model.lora.use_rslora": True}, "lora"),
    Change({"model.lora.alpha_pattern": {"q_proj": 64.0}}, "lora"),
]
"""On ZeRO-2; with HARNESS_NIGHTLY=1 on every engine."""

NOT_SHOWN = {
    "plugins.script_args": "they are what its script makes of them",
    "model.lora.lora_dropout": "its masks are random",
    "precision.loss_scale_window": "it decides later loss scales (`test_own_settings.py`)",
    "precision.hysteresis": "it decides later loss scales (`test_own_settings.py`)",
    "precision.min_loss_scale": "it decides later loss scales (`test_own_settings.py`)",
    **dict.fromkeys(
        (
            *(f"data.{name}_column" for name in ("chosen", "rejected", "label")),
            *(f"dpo.{name}" for name in ("loss_type", "beta", "label_smoothing", "rpo_alpha")),
            *(f"kto.{name}" for name in ("loss_type", "beta", "desirable_weight", "undesirable_weight")),
        ),
        "the case trains on texts; of preferences it decides the loss (`test_preference_parity.py`)",
    ),
    **dict.fromkeys(
        (
            *(f"classification.{name}" for name in ("problem_type", "num_labels", "label_names")),
            *(f"reward.{name}" for name in ("center_rewards_coefficient", "margin_column")),
        ),
        "the case trains on texts; it decides the labels and the loss (`test_label_heads.py`)",
    ),
}
"""Keys that a resume applies and that one step cannot show: why."""
_IN_CI = (
    {},
    {"optimizer.learning_rate": 3e-4},
    {"optimizer.weight_decay": 0.0},
    {"train.max_grad_norm": 0.01},
    {"train.seed": 8},
)


def is_in_ci(change: Change) -> bool:
    """Whether every run of the tests tries this change; the others need HARNESS_NIGHTLY=1."""
    return change.base == "adamw" and change.values in _IN_CI


def is_of_optimizer(change: Change) -> bool:
    """Whether it changes what DeepSpeed's wrappers keep of the optimizer, so that it is tried on every engine."""
    return all(key.startswith("optimizer.") or key == "train.max_grad_norm" for key in change.values)
