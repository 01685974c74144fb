# SPDX-License-Identifier: Apache-2.0
"""A flat YAML of TrainingArguments, as the scripts of the Trainer take it."""

from __future__ import annotations

from harness.convert.dataset_mixture import convert_mixture
from harness.convert.lora_settings import LORA_KEYS, convert_lora
from harness.convert.programs import trainer_arguments as shared
from harness.convert.trainer_file import Default, Program, TrainerFile, Values, is_on

_SOURCE = "transformers: training_args.py"


def has_steps(values: Values) -> bool:
    """Does the file count steps instead of epochs?"""
    steps = values.get("max_steps")
    return isinstance(steps, (int, float)) and steps > 0


TRAINER_DEFAULTS = (
    Default("optimizer.learning_rate", 5e-5, _SOURCE),
    Default("scheduler.type", "linear", _SOURCE),
    Default("train.per_device_train_batch_size", 8, _SOURCE),
    Default("train.num_train_epochs", 3.0, _SOURCE, when=lambda values: not has_steps(values)),
    Default("checkpoint.save_steps", 500, _SOURCE, when=lambda values: values.get("save_strategy") in (None, "steps")),
    Default("data.group_by_length", False, _SOURCE),
)
"""TrainingArguments where no program changes them; the same in 4.45.2 and 5.23.0. `group_by_length` is called
`train_sampling_strategy` since 5.0.
"""


_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "auto": "auto"}


def _trained_formats(file: TrainerFile) -> list[str]:
    """The 16-bit formats that the file switches on."""
    return [name for name in ("bf16", "fp16") if is_on(file.values.get(name))]


def convert_flat_yaml(file: TrainerFile) -> None:
    """TrainingArguments, and the keys that name the data."""
    shared.convert_trainer_arguments(file)
    convert_lora(file, "lora_target_modules", rank=16, nested=False)  # those of TRL
    data = file.take_value("dataset_name", "train_file")
    subset = file.take_value("dataset_config", "dataset_config_name")
    if data is not None:
        file.put("data.train", [{"path": str(data), "name": str(subset)}] if subset else str(data))
    else:
        convert_mixture(file)
    if data is None and subset is not None:
        file.add_manual(file.name_of("dataset_config", "dataset_config_name"), "set `data.train`, `name` of the source")
    name = file.name_of("torch_dtype", "dtype")
    if _FORMATS.get(str(file.values.get(name))) in (*_trained_formats(file), "auto"):
        file.take_value("torch_dtype", "dtype")
    if file.values.get("dataset_text_field"):
        file.put("data.text_column", file.take_value("dataset_text_field"))


HF_TRAINER = Program(
    "the Trainer",
    ("4.45.2", "5.23.0"),
    {
        **shared.KEYS,
        "model_name_or_path": "model.name_or_path",
        "model_path": "model.name_or_path",
        "model_revision": "model.revision",
        "tokenizer_name_or_path": "model.tokenizer",
        "tokenizer_name": "model.tokenizer",
        "attn_implementation": "model.attn_implementation",
        "max_length": "data.max_length",
        "preprocessing_num_workers": "data.num_proc",
    },
    (*TRAINER_DEFAULTS, Default("data.eval_fraction", 0.0, _SOURCE)),
    convert_flat_yaml,
    shared.HARMLESS | {"overwrite_cache", "use_fast_tokenizer", "cache_dir", *LORA_KEYS},
    shared.LOSSY,
    {
        **shared.MANUAL,
        "torch_dtype": ("precision.bf16", " where it is bfloat16"),
        "dtype": ("precision.bf16", " where it is bfloat16"),
        "dataset": ("data.train", ""),
        "chat_template": ("data.chat_template", " to a file with it"),
        "validation_file": ("data.eval", ""),
        "block_size": ("data.max_length", ""),
        "model_max_length": ("data.max_length", ""),
    },
    shared.NEUTRAL,
)
