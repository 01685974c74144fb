# SPDX-License-Identifier: Apache-2.0
"""TrainingArguments of the Hugging Face Trainer, which axolotl, LLaMA-Factory and ms-swift share.

Read in transformers 4.45.2 and 5.23.0 (`training_args.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.convert.trainer_file import TrainerFile, is_on
from harness.hostinfo.stored_models import find_own_code

KEYS = {
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "adam_epsilon": "optimizer.eps",
    "max_grad_norm": "train.max_grad_norm",
    "seed": "train.seed",
    "output_dir": "launch.output_dir",
    "save_total_limit": "checkpoint.save_total_limit",
    "logging_steps": "logging.logging_steps",
    "per_device_train_batch_size": "train.per_device_train_batch_size",
    "per_device_eval_batch_size": "eval.per_device_eval_batch_size",
    "num_train_epochs": "train.num_train_epochs",
    "eval_on_start": "eval.eval_on_start",
    "torch_compile": "train.torch_compile",
    "torch_compile_backend": "train.torch_compile_backend",
    "trust_remote_code": "model.trust_remote_code",
}
HARMLESS = frozenset(
    """do_train do_eval do_predict overwrite_output_dir logging_dir logging_strategy logging_first_step log_level
    log_level_replica log_on_each_node logging_nan_inf_filter disable_tqdm include_num_input_tokens_seen
    include_tokens_per_second skip_memory_metrics save_safetensors save_only_model save_on_each_node push_to_hub
    hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision dataloader_num_workers
    dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor ddp_timeout ddp_backend
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_broadcast_buffers local_rank torch_empty_cache_steps
    remove_unused_columns prediction_loss_only eval_accumulation_steps eval_delay bf16_full_eval fp16_full_eval
    use_liger_kernel liger_kernel_config use_cache full_determinism use_cpu debug length_column_name
    torch_compile_mode metric_for_best_model greater_is_better batch_eval_metrics include_for_metrics
    eval_do_concat_batches predict_with_generate generation_max_length generation_num_beams tf32 half_precision_backend
    accelerator_config use_legacy_prediction_loop past_index mp_parameters project trackio_space_id
    no_cuda auto_find_batch_size_hint run_name""".split()
)
"""Display, storage, transport and speed."""
LOSSY = {
    "label_smoothing_factor": "smooths the labels, the run spec does not",
    "neftune_noise_alpha": "adds noise to the embeddings, the run spec does not",
    "data_seed": "has a separate seed for the order of the data; the run spec uses `train.seed`",
    "optim_args": "further arguments of the optimizer, which the run spec does not have",
    "optim_target_modules": "the optimizer has other settings for some modules; in the run spec all have the same",
    "dataloader_drop_last": "drops the last, smaller batch of an epoch",
    "average_tokens_across_devices": "weighs ranks by their tokens or not; the run spec always weighs by tokens",
    "ignore_data_skip": "starts the data again after a resume; the run spec continues where it was",
    "fp8": "trains in fp8, the run spec in 16 bit",
    "fp8_backend": "trains in fp8, the run spec in 16 bit",
}
MANUAL = {
    "auto_find_batch_size": (
        "train.per_device_train_batch_size",
        " to a size that fits: the program halves it until it does",
    ),
    "resume_from_checkpoint": ("--resume", " at `harness launch`, after `harness checkpoint import`"),
    "fsdp": ("zero.stage", ": 3, which shards as FSDP does"),
    "fsdp_config": ("zero.stage", ": 3, which shards as FSDP does"),
    "parallelism_config": ("parallel", ", its degrees by hand"),
}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "average_tokens_across_devices": (True,),
    "label_smoothing_factor": (0, 0.0),
    "neftune_noise_alpha": (0, 0.0),
    "fsdp": (False, "", []),
    "resume_from_checkpoint": (False,),
}
_ADAMW = frozenset(
    """adamw adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_apex_fused adamw_hf
    paged_adamw paged_adamw_32bit adamw_torch_compile""".split()
)
_OTHER_OPTIMIZERS = {
    "sgd": "sgd",
    "adagrad": "adagrad",
    "lion": "lion",
    "lion_32bit": "lion",
    "paged_lion_32bit": "lion",
}
_OTHER_STATES = {
    **dict.fromkeys("adamw_8bit adamw_bnb_8bit paged_adamw_8bit ao_adamw_8bit".split(), ("adamw", "states of 8 bit")),
    "adamw_torch_8bit": ("adamw", "states of 8 bit"),
    "adamw_torch_4bit": ("adamw", "states of 4 bit"),
    "ao_adamw_4bit": ("adamw", "states of 4 bit"),
    "ao_adamw_fp8": ("adamw", "states in fp8"),
    "optimi_adamw": ("adamw", "16-bit weights with Kahan summation"),
    "adamw_anyprecision": ("adamw", "states of another precision"),
    "lion_8bit": ("lion", "states of 8 bit"),
    "paged_lion_8bit": ("lion", "states of 8 bit"),
}
_SCHEDULES = {
    **{name: name for name in "linear cosine cosine_with_restarts polynomial inverse_sqrt warmup_stable_decay".split()},
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
}
_SCHEDULE_ARGUMENTS = {
    "num_cycles": "scheduler.num_cycles",
    "power": "scheduler.power",
    "min_lr_rate": "scheduler.min_lr_ratio",
    "min_lr_ratio": "scheduler.min_lr_ratio",
    "num_decay_steps": "scheduler.decay_steps",
    "decay_type": "scheduler.decay_type",
}
_TRACKERS = ("wandb", "tensorboard", "mlflow")
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def convert_trainer_arguments(file: TrainerFile) -> None:
    """Everything of TrainingArguments that is more than a copy by name."""
    _convert_length(file)
    _convert_optimizer(file)
    _convert_schedule(file)
    _convert_warmup(file)
    _convert_precision(file)
    _convert_checkpointing(file)
    _convert_saves(file)
    _convert_evaluation(file)
    _convert_trackers(file)
    _convert_batches(file)
    _add_code_note(file)
    name = file.values.get("run_name")
    if isinstance(name, str) and _RUN_NAME.fullmatch(name):
        file.put("name", file.take_value("run_name"))


def _add_code_note(file: TrainerFile) -> None:
    """A spec may come from somebody else: code of a model is pinned (SE001), and an export asks before it runs it."""
    if not is_on(file.values.get("trust_remote_code")):
        return
    name, revision = str(file.draft.get("model.name_or_path")), str(file.draft.get("model.revision") or "")
    code = find_own_code(name)
    if code == ():
        file.draft.drop(("model", "trust_remote_code"))
        file.add_harmless("trust_remote_code", f"`{name}` has no Python files")
        return
    is_pinned = _COMMIT.fullmatch(revision) is not None or code is not None or name.startswith((".", "/", "~"))
    allow = "`launch` and `export` run that code only with `--allow-local-code`"
    if is_pinned:
        file.add_manual("trust_remote_code", f"read the model's Python files; {allow} (SE001)")
        return
    pin = "remove it where `transformers` has the model; else read its code and set `model.revision` to that commit"
    file.add_manual("trust_remote_code", f"{pin} (SE001). {allow}")


def _convert_length(file: TrainerFile) -> None:
    steps = file.take_value("max_steps")
    if isinstance(steps, int) and steps > 0:
        file.put("train.max_steps", steps)
        epochs = next((name for name in ("num_train_epochs", "num_epochs") if file.values.get(name) is not None), None)
        if epochs is not None:
            file.draft.drop(("train", "num_train_epochs"))
            file.add_harmless(epochs, "`max_steps` wins")
    elif steps not in (None, -1, 0):
        file.add_manual("max_steps", "set `train.max_steps`")
    logging = file.values.get("logging_steps")
    if isinstance(logging, float) and not logging.is_integer():
        file.draft.drop(("logging", "logging_steps"))
        file.add_harmless("logging_steps", "a share of all steps; every step is logged")


def _convert_optimizer(file: TrainerFile) -> None:
    name = file.name_of("optimizer", "optim")
    kind = file.take_value("optimizer", "optim")
    if isinstance(kind, dict):
        file.add_manual(name, "set `optimizer.type`")
    elif kind is not None:
        kind = str(kind).lower()
        if kind in _ADAMW:
            file.put("optimizer.type", "adamw")
        elif kind in _OTHER_OPTIMIZERS:
            file.put("optimizer.type", _OTHER_OPTIMIZERS[kind])
        elif kind in _OTHER_STATES:
            file.put("optimizer.type", _OTHER_STATES[kind][0])
            file.add_lossy(
                name, f"{_OTHER_STATES[kind][1]}; the run spec's `{_OTHER_STATES[kind][0]}` has states of 32 bit"
            )
        else:
            file.add_lossy(name, "the run spec trains with `optimizer.type: adamw`; it has no such optimizer")
    if file.values.get("adam_beta1") is not None or file.values.get("adam_beta2") is not None:
        first, second = file.take_value("adam_beta1"), file.take_value("adam_beta2")
        default = next((d.value for d in file.program.defaults if d.key == "optimizer.betas" and not d.until), None)
        default = default or [0.9, 0.999]
        file.put("optimizer.betas", [default[0] if first is None else first, default[1] if second is None else second])


def _convert_schedule(file: TrainerFile) -> None:
    name = file.name_of("lr_scheduler", "lr_scheduler_type")
    kind = file.take_value("lr_scheduler", "lr_scheduler_type")
    if kind is not None and str(kind) in _SCHEDULES:
        file.put("scheduler.type", _SCHEDULES[str(kind)])
    elif kind is not None:
        file.put("scheduler.type", "cosine")
        file.add_lossy(name, "the run spec trains with `scheduler.type: cosine`; it has no such schedule")
    arguments = file.take_value("lr_scheduler_kwargs")
    for key, value in arguments.items() if isinstance(arguments, Mapping) else ():
        rate = file.draft.get("optimizer.learning_rate")
        if key in _SCHEDULE_ARGUMENTS:
            file.put(_SCHEDULE_ARGUMENTS[key], value)
        elif key == "min_lr" and isinstance(value, (int, float)) and isinstance(rate, (int, float)) and rate:
            file.put("scheduler.min_lr_ratio", float(f"{value / rate:.6g}"))
        else:
            file.add_lossy(f"lr_scheduler_kwargs.{key}", "an argument of the schedule that the run spec does not have")


def _convert_warmup(file: TrainerFile) -> None:
    """A float below 1 in `warmup_steps` is a share (transformers 5)."""
    ratio_name, steps_name = file.name_of("warmup_ratio"), file.name_of("warmup_steps")
    steps, ratio = file.take_value("warmup_steps"), file.take_value("warmup_ratio")
    if file.values.get("lr_scheduler_type", file.values.get("lr_scheduler")) == "constant" and (steps or ratio):
        file.add_harmless(steps_name if steps else ratio_name, "`constant` has no warm-up there")
        return
    if isinstance(steps, float) and 0 < steps < 1:
        steps, ratio = None, steps
    if steps is not None:
        file.put("scheduler.warmup_steps", int(steps) if isinstance(steps, float) and steps.is_integer() else steps)
    if ratio is not None and not steps:
        file.put("scheduler.warmup_ratio", ratio)
        file.draft.drop(("scheduler", "warmup_steps"))


def _convert_precision(file: TrainerFile) -> None:
    bf16, fp16 = file.take_value("bf16"), file.take_value("fp16")
    if fp16 is True and bf16 in (None, False, "auto"):
        file.put("precision.fp16", True)
    elif bf16 in (True, "auto", "full"):
        file.put("precision.bf16", True)
        if bf16 == "auto":
            file.add_harmless("bf16", "mapped to `precision.bf16: true`; it means fp16 on devices without bf16")
        if bf16 == "full":
            file.add_lossy("bf16", "only 16-bit weights; the run spec keeps fp32 master weights")
    elif bf16 is False:
        file.put("precision.bf16", False)
        if fp16 is False:
            file.put("precision.fp16", False)


def _convert_checkpointing(file: TrainerFile) -> None:
    arguments = file.take_value("gradient_checkpointing_kwargs")
    value = file.take_value("gradient_checkpointing")
    if value is not None:
        file.put("train.gradient_checkpointing", value is True or str(value) not in ("False", "false"))
        if isinstance(value, str) and value.lower() not in ("true", "false"):
            file.add_manual(
                "gradient_checkpointing", "recomputes and moves layer inputs; set `train.offload_activations`"
            )
    fsdp = file.values.get("fsdp_config")
    if isinstance(fsdp, Mapping) and is_on(
        fsdp.get("activation_checkpointing", fsdp.get("fsdp_activation_checkpointing"))
    ):
        file.put("train.gradient_checkpointing", True)
    for key, argument in arguments.items() if isinstance(arguments, Mapping) else ():
        if key == "use_reentrant":
            file.put("train.gradient_checkpointing_use_reentrant", argument is True)
        elif key == "every_n_layers" and is_on(value) and isinstance(argument, int) and argument > 1:
            file.put("train.gradient_checkpointing", {"recompute_every": argument})
        else:
            file.add_harmless(f"gradient_checkpointing_kwargs.{key}")


def _convert_saves(file: TrainerFile) -> None:
    strategy, steps = file.take_value("save_strategy"), file.take_value("save_steps")
    limit = file.values.get("save_total_limit")
    if isinstance(limit, int) and limit < 1:
        file.draft.drop(("checkpoint", "save_total_limit"))  # no limit
    if strategy == "no":
        file.put("checkpoint.save_steps", None)
    elif strategy in ("epoch", "best"):
        text = (
            "the steps of an epoch"
            if strategy == "epoch"
            else "that of `eval.eval_steps`, with `checkpoint.keep_best` and `save_total_limit: 1`"
        )
        file.put("checkpoint.save_steps", None)
        file.add_manual("save_strategy", f"set `checkpoint.save_steps` to {text}; without it only the end is saved")
    elif steps is not None:
        _put_steps(file, "save_steps", "checkpoint.save_steps", steps)


def _convert_evaluation(file: TrainerFile) -> None:
    name = file.name_of("eval_strategy", "evaluation_strategy")
    strategy, steps = file.take_value("eval_strategy", "evaluation_strategy"), file.take_value("eval_steps")
    has_evaluation = strategy not in (None, "no", False) or steps is not None
    if strategy in ("no", False):
        return
    if strategy == "epoch":
        file.add_manual(name, "set `eval.eval_steps` to the steps of an epoch; without it only the end is evaluated")
    elif steps is not None:
        _put_steps(file, "eval_steps", "eval.eval_steps", steps)
    elif has_evaluation:
        logging = file.draft.get("logging.logging_steps")
        file.put("eval.eval_steps", logging if isinstance(logging, int) else 500)  # as TrainingArguments fills it in


def _put_steps(file: TrainerFile, name: str, key: str, steps: Any) -> None:
    """Steps, or a share of all of them."""
    total = file.draft.get("train.max_steps")
    if isinstance(steps, float) and steps.is_integer() and steps >= 1:
        file.put(key, int(steps))
    elif isinstance(steps, float) and 0 < steps < 1 and isinstance(total, int):
        file.put(key, max(1, round(steps * total)))
    elif isinstance(steps, float):
        file.put(key, None)
        file.add_manual(name, f"a share of all steps: set `{key}` to {steps:g} x the steps of the run")
    else:
        file.put(key, steps)


def _convert_trackers(file: TrainerFile) -> None:
    value = file.values.get("report_to")
    names = [str(part) for part in value] if isinstance(value, list) else str(value or "").split()
    known = [part for part in names if part in _TRACKERS]
    if known:
        file.put("telemetry.trackers", known)
    others = [part for part in names if part not in (*_TRACKERS, "none", "all")]
    if others:
        file.add_harmless("report_to", f"the run spec has no tracker `{others[0]}`")
    file.take_value("report_to")


def _convert_batches(file: TrainerFile) -> None:
    """Batches of like length: a switch up to transformers 4, a word since 5."""
    sampling = file.take_value("train_sampling_strategy")
    by_length = file.take_value("group_by_length")
    if by_length is not None or sampling is not None:
        file.put("data.group_by_length", by_length is True or sampling == "group_by_length")
    if sampling == "sequential":
        file.put("data.shuffle", False)
