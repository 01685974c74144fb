# SPDX-License-Identifier: Apache-2.0
"""A flat YAML of TrainingArguments, as the scripts of the Trainer take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    trained = [key for key in ("bf16", "fp16") if is_on(file.values.get(key))]
    if _FORMATS.get(str(file.values.get(name))) in (*trained, "auto"):
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


_NAMES = {"path": "path", "id": "path", "name": "name", "config": "name", "split": "split", "fraction": "weight"}
_NOTES = {
    "weight": "trains on a part of each dataset's rows; a run spec takes all of them",
    "fraction": "shares are of rows, the first of each dataset; those of a run spec are of sequences",
}


def convert_mixture(file: TrainerFile) -> None:
    """Set `data.train` from several datasets of a TRL file; an entry with what a source does not have leaves all to be
    set by hand. `fraction` of `datasets` (TRL 1.16) is a share of the mixture, `weight` of open-r1's `dataset_mixture`
    the part of a dataset that is trained on. `test_split_size`: a share, or as a whole number so many records.
    """
    key = file.name_of("dataset_mixture", "datasets")
    value = file.values.get(key)
    options = value if isinstance(value, Mapping) else {"datasets": value}
    entries = options.get("datasets")
    if not isinstance(entries, list) or not entries or not all(map(_is_source, entries)):
        return
    file.take_value(key)
    file.put(
        "data.train", [{_NAMES[k]: v for k, v in each.items() if k in _NAMES and v is not None} for each in entries]
    )
    size = options.get("test_split_size") or file.take_value("test_split_size")
    if isinstance(size, float) and size < 1:
        file.put("data.eval_fraction", size)
    elif size:
        text = f"`test_split_size: {size}` is a number of records: set `data.eval_fraction` to its share of all"
        file.add_note("manual", key, text)
    for name, note in _NOTES.items():
        if any(entry.get(name, 1) != 1 for entry in entries):
            file.add_lossy(key, note)


def _is_source(entry: Any) -> bool:
    is_named = isinstance(entry, Mapping) and bool(entry.get("path") or entry.get("id"))
    return is_named and entry.keys() <= {*_NAMES, *_NOTES, "columns"} and type(entry.get("fraction", 1)) in (int, float)
