# SPDX-License-Identifier: Apache-2.0
"""TRL: a flat YAML for `trl sft` (`trl/trainer/sft_config.py`), read in 0.20.0 to 1.9.0. Its defaults are not the
Trainer's, and it trains on every token of a chat.
"""

from __future__ import annotations

from harness.convert.lora_settings import trains_lora
from harness.convert.programs import trainer_arguments as shared
from harness.convert.programs.hf_trainer import HF_TRAINER as _TRAINER
from harness.convert.programs.hf_trainer import TRAINER_DEFAULTS, convert_flat_yaml
from harness.convert.trainer_file import Default, Program, is_on

_SOURCE = "TRL: trl/trainer/sft_config.py"
_DEFAULTS = (
    Default("optimizer.learning_rate", 2e-5, f"{_SOURCE}: learning_rate"),
    Default("train.gradient_checkpointing", True, f"{_SOURCE}: gradient_checkpointing", since="0.22.0"),
    Default("precision.bf16", True, f"{_SOURCE}: __post_init__",
            when=lambda values: values.get("bf16") is None and not is_on(values.get("fp16"))),
    Default("data.assistant_only_loss", False, f"{_SOURCE}: assistant_only_loss"),
    Default("data.eval_fraction", 0.0, f"{_SOURCE}: eval_strategy"),
    Default("model.lora.lora_alpha", 32, "TRL: trl/trainer/model_config.py: lora_alpha", when=trains_lora),
    Default("model.lora.lora_dropout", 0.05, "TRL: trl/trainer/model_config.py: lora_dropout", when=trains_lora),
    *(default for default in TRAINER_DEFAULTS if default.key != "optimizer.learning_rate"),
)  # fmt: skip

TRL = Program(
    "TRL",
    ("0.20.0", "1.9.0"),
    {
        **_TRAINER.keys,
        "max_length": "data.max_length",
        "max_seq_length": "data.max_length",
        "packing": "data.packing",
        "assistant_only_loss": "data.assistant_only_loss",
        "completion_only_loss": "data.completion_only_loss",
        "dataset_num_proc": "data.num_proc",
        "pad_to_multiple_of": "data.pad_to_multiple_of",
    },
    _DEFAULTS,
    convert_flat_yaml,
    _TRAINER.harmless
    | set(
        """log_completions packing_strategy padding_free eval_packing ignore_bias_buffers callbacks benchmarks
        hub_model_revision overwrite_hub_revision push_to_hub_revision wandb_entity wandb_project
        wandb_run_group""".split()  # of open-r1's scripts: they evaluate, upload and report
    ),
    {
        **shared.LOSSY,
        "eos_token": "another token that ends a turn; the run spec takes the tokenizer's",
        "pad_token": "another token for padding; the run spec takes the tokenizer's",
        "router_aux_loss_coef": "another weight of the experts' balance loss; the run spec takes the model's",
    },
    {
        **_TRAINER.manual,
        "dataset_mixer": ("data.train", ", one source for each with its `weight`"),
        "dataset_mixture": ("data.train", ", one source for each with its `weight`"),
        "dataset_splits": ("data.train", ", `split` of each source"),
        "datasets": ("data.train", ", one source for each"),
        "dataset_train_split": ("data.train", ", `split` of the source"),
        "dataset_test_split": ("data.eval", ", `split` of the source"),
        "chat_template_path": ("data.chat_template", " to that template"),
        "model_init_kwargs": ("model", ", its settings by hand"),
        "dataset_kwargs": ("data", ", its settings by hand"),
        "activation_offloading": ("train.offload_activations", ""),
        "truncation_mode": ("data.excess_length_strategy", "; the run spec keeps the start of a record"),
    },
    {
        **shared.NEUTRAL,
        "truncation_mode": ("keep_start",),
        "dataset_train_split": ("train",),
        "router_aux_loss_coef": (0, 0.0),
        "shuffle_dataset": (False, True),
    },
)
