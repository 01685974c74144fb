# SPDX-License-Identifier: Apache-2.0
"""The YAML of axolotl, and the flat one of LLaMA-Factory and other users of the Hugging Face Trainer, for `harness
adopt`; with the DeepSpeed JSON that they name.

Values are copied by name; the run spec checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.convert.draft import Draft
from harness.convert.trainer_sections import LORA_KEYS, data_fields, is_lora, is_lora_by_default, lora_fields
from harness.convert.unsupported_methods import find_unsupported_methods
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec.config_format import detect_format
from harness.spec.deepspeed_mapping import DeepSpeedJson
from harness.spec.parse.source import is_json, read_text
from harness.spec.parse.source_parser import parse
from harness.spec.referenced_files import find_referenced_file, read_deepspeed_json
from harness.spec.spec_loader import LoadedSpec, load_deepspeed_json

_COMMON_KEYS = {
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "max_steps": "train.max_steps",
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "adam_epsilon": "optimizer.eps",
    "max_grad_norm": "train.max_grad_norm",
    "gradient_checkpointing": "train.gradient_checkpointing",
    "seed": "train.seed",
    "output_dir": "launch.output_dir",
    "save_steps": "checkpoint.save_steps",
    "save_total_limit": "checkpoint.save_total_limit",
    "logging_steps": "logging.logging_steps",
    "eval_steps": "eval.eval_steps",
    "warmup_steps": "scheduler.warmup_steps",
    "warmup_ratio": "scheduler.warmup_ratio",
    "trust_remote_code": "model.trust_remote_code",
    "tensor_parallel_size": "parallel.tensor_parallel_size",
    "attn_implementation": "model.attn_implementation",
}
_AXOLOTL_KEYS = {
    **_COMMON_KEYS,
    "base_model": "model.name_or_path",
    "revision_of_model": "model.revision",
    "tokenizer_config": "model.tokenizer",
    "sequence_len": "data.max_length",
    "micro_batch_size": "train.per_device_train_batch_size",
    "eval_batch_size": "eval.per_device_eval_batch_size",
    "num_epochs": "train.num_train_epochs",
    "val_set_size": "data.eval_fraction",
    "context_parallel_size": "parallel.sequence_parallel_size",
    "sequence_parallel_degree": "parallel.sequence_parallel_size",
    "cosine_min_lr_ratio": "scheduler.min_lr_ratio",
}
_TRAINER_KEYS = {
    **_COMMON_KEYS,
    "model_name_or_path": "model.name_or_path",
    "model_revision": "model.revision",
    "tokenizer_name_or_path": "model.tokenizer",
    "cutoff_len": "data.max_length",
    "max_length": "data.max_length",
    "max_seq_length": "data.max_length",
    "per_device_train_batch_size": "train.per_device_train_batch_size",
    "per_device_eval_batch_size": "eval.per_device_eval_batch_size",
    "num_train_epochs": "train.num_train_epochs",
    "val_size": "data.eval_fraction",
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "axolotl-yaml": {"scheduler.type": "cosine", "optimizer.type": "adamw"},
    "trainer-yaml": {"scheduler.type": "linear", "optimizer.type": "adamw", "optimizer.learning_rate": 5e-5},
}
"""The Trainer's defaults where those of a run spec differ."""
_SPECIAL_KEYS = frozenset(
    """deepspeed optimizer optim lr_scheduler lr_scheduler_type bf16 fp16 pure_bf16 adam_beta1 adam_beta2 datasets
    flash_attention sdp_attention flash_attn finetuning_type""".split()
)
_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
_OPTIMIZERS = "adamw adamw_torch adamw_torch_fused adamw_hf sgd".split()
_KNOWN_VALUES = {
    "optimizer": _OPTIMIZERS,
    "optim": _OPTIMIZERS,
    "lr_scheduler": [*_SCHEDULES],
    "lr_scheduler_type": [*_SCHEDULES],
}
"""Values for which the run spec has an equivalent; for others its default is used."""
_ATTENTION_KERNELS = {"fa2": "flash_attention_2", "sdpa": "sdpa", "flash_attention_2": "flash_attention_2"}


def load_trainer_config(file: str, target: DeepSpeedTarget) -> LoadedSpec | None:
    """A trainer's file with the DeepSpeed JSON that it names; None for other files. Raises UserError."""
    if file == "-":
        return None
    text = read_text(file)
    if is_json(file, text):
        return None
    source = parse(text, file)
    file_format = detect_format(source)
    if file_format not in ("axolotl-yaml", "trainer-yaml"):
        return None
    method_findings = find_unsupported_methods(source)
    if method_findings:
        return LoadedSpec(file, source, None, method_findings, code=ExitCode.FINDINGS, format=file_format)
    deepspeed = source.data.get("deepspeed")
    config: dict[str, Any] = deepspeed if isinstance(deepspeed, dict) else {}
    fragment = DeepSpeedJson(source._replace(data=config))
    path = find_referenced_file(file, deepspeed) if isinstance(deepspeed, str) else None
    if path is not None:
        document = read_deepspeed_json(path)
        lines = {**source.extra_lines, path: document.source.text.split("\n")}
        merged = source._replace(data=document.source.data, spots=document.source.spots, extra_lines=lines)
        fragment = DeepSpeedJson(merged, document.findings)
    loaded = load_deepspeed_json(fragment, (), target, "hf")
    if loaded.spec is None:
        raise UserError([f for f in loaded.findings if f.is_error])
    return loaded._replace(format=file_format)


def add_trainer_fields(draft: Draft, loaded: LoadedSpec) -> None:
    """Add the fields of the trainer's own file; those of the JSON stay."""
    if loaded.source is None:
        return
    source = parse(loaded.source.text, loaded.source.file)
    data = source.data
    schedule = loaded.source.data.get("scheduler")
    if isinstance(schedule, dict) and "auto" in (schedule.get("params") or {}).values():
        draft.drop(("deepspeed", "scheduler"))  # the trainer's file has the values that the JSON leaves open
    table = _AXOLOTL_KEYS if loaded.format == "axolotl-yaml" else _TRAINER_KEYS
    filled = set()
    for name, value in data.items():
        if name in table and value is not None and not (name == "max_steps" and value in (-1, 0)):
            _copy_value(draft, loaded, name, table[name], value)
            filled.add(table[name])
    for key, value in _special_fields(data):
        draft.put(key, value)
        filled.add(key)
    for key, value in _DEFAULTS[loaded.format].items():
        if draft.get(key) is None and not (key.startswith("optimizer") and draft.get("deepspeed.optimizer")):
            draft.put(key, value)
    if "micro_batch_size" not in data and "per_device_train_batch_size" not in data:
        filled.discard("train.per_device_train_batch_size")
    draft.notes[:] = [note for note in draft.notes if not any(f"set `{key}`" in note.message for key in filled)]
    if is_lora_by_default(data):
        message = "`finetuning_type` is not written: LLaMA-Factory trains LoRA then"
        draft.add_note(source.place(("stage",), of_key=True), message)
    _add_notes(draft, loaded, data, table)


def _copy_value(draft: Draft, loaded: LoadedSpec, name: str, key: str, value: Any) -> None:
    if loaded.source is None:
        return
    json_value = draft.get(key)
    is_in_json = loaded.source.has_key(key)
    if is_in_json and json_value not in (None, value):
        place = parse(loaded.source.text, loaded.source.file).place((name,))
        draft.add_note(
            place, f"`{name}` is {value}, the DeepSpeed JSON says {json_value}: the Trainer refuses the pair"
        )
        return
    draft.put(key, value)


def _special_fields(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kind = str(data.get("optimizer") or data.get("optim") or "")
    if kind.startswith(("adamw", "paged_adamw")):
        yield "optimizer.type", "adamw"
    elif kind == "sgd":
        yield "optimizer.type", "sgd"
    schedule = _SCHEDULES.get(str(data.get("lr_scheduler") or data.get("lr_scheduler_type")))
    if schedule:
        yield "scheduler.type", schedule
    if data.get("bf16") in (True, "auto", "full") or data.get("pure_bf16") is True:
        yield "precision.bf16", True
    elif data.get("fp16") is True:
        yield "precision.fp16", True
    if "adam_beta1" in data or "adam_beta2" in data:
        yield "optimizer.betas", [data.get("adam_beta1", 0.9), data.get("adam_beta2", 0.999)]
    kernel = "fa2" if data.get("flash_attention") is True else "sdpa" if data.get("sdp_attention") is True else None
    kernel = kernel or str(data.get("flash_attn"))
    if kernel in _ATTENTION_KERNELS:
        yield "model.attn_implementation", _ATTENTION_KERNELS[kernel]
    yield from data_fields(data)
    yield from lora_fields(data)


def _add_notes(draft: Draft, loaded: LoadedSpec, data: dict[str, Any], table: dict[str, str]) -> None:
    """Add a note for each key that has no place in a run spec, in the order of the file."""
    if loaded.source is None:
        return
    source = parse(loaded.source.text, loaded.source.file)
    for name, value in data.items():
        if name == "deepspeed" and isinstance(value, str):
            if loaded.source.spots == source.spots or not loaded.source.data:
                draft.add_note(source.place((name,)), f"`{value}` is not found: set `zero.stage` and the rest")
        elif not _is_mapped(draft, data, name):
            message = _describe_unmapped_key(draft, name, value, known=name in table or name in _SPECIAL_KEYS)
            if message:
                draft.add_note(source.place((name,), of_key=True), message)


def _is_mapped(draft: Draft, data: dict[str, Any], name: str) -> bool:
    """Is the key mapped together with others?"""
    if is_lora(data) and (data[name] == "lora" or name in LORA_KEYS):
        return True
    if name == "sample_packing":
        return data[name] is False or bool(draft.get("data.packing")) or _is_plain_text(draft)
    return name == "train_on_inputs" and draft.get("data.train") is not None


def _is_plain_text(draft: Draft) -> bool:
    """Is all data plain text, which is always packed?"""
    sources = draft.get("data.train")
    return isinstance(sources, list) and all(isinstance(source, str) for source in sources)


def _describe_unmapped_key(draft: Draft, name: str, value: Any, *, known: bool) -> str | None:
    """The note about a key; None where nothing of it is lost."""
    has_no_place = "has no place in a run spec"
    if name == "datasets" and draft.get("data.train") is None:
        return f"`{name}` has kinds or settings that {has_no_place.replace('has', 'have')}: set `data.train`"
    if name in ("bf16", "fp16") and value == "auto" and draft.get("precision.bf16"):
        return f"`{name}: auto` is mapped to bf16"
    if name in _KNOWN_VALUES and value is not None and str(value) not in _KNOWN_VALUES[name]:
        return f"`{name}: {value}` {has_no_place}: another stands for it"
    if not known and value not in (None, False, "", [], {}):
        return f"`{name}` {has_no_place}"
    return None
