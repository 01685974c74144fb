# SPDX-License-Identifier: Apache-2.0
"""The phase in which a job failed: from the frames of the traceback, else from the last lines before the failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from harness.diagnosis.diagnosis_types import FailurePhase, Frame, PhaseMark

_FRAMES: tuple[tuple[str, str], ...] = (
    ("launcher", r"deepspeed/launcher/(?:runner|multinode_runner)\.py"),
    ("exporting", r"zero_to_fp32\.py|ds_to_universal|convert_zero_checkpoint|get_fp32_state_dict_from_zero|"
     r" merge_and_unload$| export\w*$"),
    ("best model", r" _load_best_model$"),
    ("resuming", r" (?:deepspeed_load_checkpoint|_?load_checkpoint|_load_from_checkpoint|load_state|"
     r"_load_zero_checkpoint|"
     r"_load_optimizer_and_scheduler|_load_rng_state|check_ckpt_list|_restore_checkpoint|restore_checkpoint)$"),
    ("saving", r" (?:_?save_checkpoint|save_model|_save|save_pretrained|save_16bit_model|save_fp16_model|save_state|"
     r"_zero3_consolidated_16bit_state_dict|_consolidated_16bit_state_dict|_save_zero_checkpoint|get_state_dict|"
     r"get_peft_model_state_dict|_save_moe_checkpoint|push_to_hub|dump_checkpoint|on_save)$"),
    ("generation", r"transformers/generation/utils\.py.* "
     r"(?:generate|_sample|sample|greedy_search|_beam_search|beam_search)$"),
    ("evaluation", r" (?:evaluation_loop|prediction_loop|prediction_step|evaluate|eval_batch|validation_step|"
     r"_run_validation|_evaluate|predict|validate)$"),
    ("op", r"op_builder/builder\.py.* (?:load|jit_load)$|torch/utils/cpp_extension\.py|ops/op_builder/"),
    ("optimizer states", r" initialize_optimizer_states$| _setup_for_real_optimizer$|_create_fp32_partitions$|"
     r" _configure_basic_optimizer$"),
    ("engine", r"deepspeed/__init__\.py.* initialize$| _prepare_deepspeed$|runtime/engine\.py.* "
     r"(?:__init__|_configure_\w+)$|"
     r"runtime/config\.py|deepspeed_init$| deepspeed_config_process$| trainer_config_\w+$"),
    ("weights", r" (?:_load_pretrained_model|_load_state_dict_into_\w+|load_checkpoint_in_model|load_shard_file|"
     r"convert_and_load_state_dict_in_model|load_state_dict)$|safetensors/"),
    ("model", r" from_pretrained$| from_config$|zero/partition_parameters\.py.* "
     r"(?:_post_init_method|wrapper|__init__)$|"
     r"modeling_\w+\.py.* __init__$| get_peft_model$| load_model\w*$"),
    ("rendezvous", r" (?:init_process_group|_create_c10d_store|init_distributed|\w*_rendezvous\w*|"
     r"init_deepspeed_dist)$|"
     r"torch/distributed/rendezvous\.py|elastic/rendezvous/"),
    ("optimizer step", r"runtime/engine\.py.* (?:step|_take_model_step)$|zero/\w+\.py.* (?:step|_optimizer_step)$|"
     r"torch/optim/\w+\.py.* step$|accelerate/optimizer\.py.* step$"),
    ("batch", r"torch/utils/data/(?:dataloader|_utils)|accelerate/data_loader\.py|data_collator\.py|"
     r"data/data_collator"),
    ("backward", r"runtime/engine\.py.* backward$|torch/autograd/__init__\.py| backward$"),
    ("forward", r"runtime/engine\.py.* forward$| compute_loss$| training_step$|torch/nn/modules/module\.py.* "
     r"_call_impl$"),
    ("training", r" (?:_inner_training_loop|_run_epoch|train_batch|fit|train_epoch)$|/runtime/train\.py"),
    ("data", r" (?:load_dataset|load_from_disk|get_dataset|_prepare_dataset|_map_single|map)$|datasets/"),
    ("import", r"^<frozen importlib"),
)  # fmt: skip
_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _FRAMES)
_STEPPED = ("forward", "backward", "optimizer step", "training", "batch")
"""Parts of a step; the last marks say which step."""
_TEXTS = {
    "launcher": "while the launcher prepared the job, before any rank started",
    "import": "while the script imported its packages",
    "rendezvous": "while the ranks connected to each other",
    "data": "while preparing the dataset",
    "model": "while building the model",
    "weights": "while loading the weights of the model",
    "op": "while building or loading one of DeepSpeed's compiled ops",
    "engine": "in `deepspeed.initialize`, while building the engine",
    "optimizer states": "in `deepspeed.initialize`, while creating the optimizer and its states",
    "first step": "in the first step",
    "batch": "while reading a batch",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer step": "in the optimizer step",
    "training": "while training",
    "generation": "while generating text",
    "evaluation": "during an evaluation",
    "saving": "while saving a checkpoint or the model",
    "best model": "after training, while loading the best model",
    "resuming": "while resuming from a checkpoint",
    "exporting": "while exporting the model",
    "ending": "after training had ended",
}

_TEXTS_OF_LINES = {
    "import": "early: the log shows nothing after the import of DeepSpeed",
    "rendezvous": "early: the log shows nothing after the rendezvous of the ranks",
}
"""Texts where no frame names the phase: programs print nothing in the phases that follow these."""


def find_phase(frames: Sequence[Frame], mark: PhaseMark, *, is_over: bool = False) -> FailurePhase | None:
    """The phase of a failure with this traceback, after this mark; None where neither says anything.

    `is_over`: the log merely ends there, nothing failed.
    """
    name = phase_of_frames(frames)
    if name == "import" and (mark.name not in ("", "import") or not _is_at_start(frames)):
        name = ""
    source: Literal["traceback", "lines"] = "traceback" if name else "lines"
    name = name or mark.name
    if not name:
        return None
    text = _TEXTS[name] if source == "traceback" else _TEXTS_OF_LINES.get(name, _TEXTS[name])
    is_step = name in _STEPPED
    has_begun = mark.name in ("training", "engine") or mark.has_bar
    if is_step and not mark.has_trained and has_begun and mark.step in (None, 0):
        part = "" if name == "training" else f", {_TEXTS[name]}"
        return FailurePhase("first step", f"in the first step{part}", None, source)
    step = mark.step if mark.has_trained or mark.step else None
    if step is not None and (is_step or name in ("saving", "evaluation", "generation", "ending", "best model")):
        text += f", after step {step}"
    elif is_step and mark.has_trained and name != "training":
        text += ", after other steps"
    if is_over and source == "lines":
        text = f"the last lines are from {_LAST_LINES[name]}" if name in _LAST_LINES else text
    return FailurePhase(name, text, step, source)


_LAST_LINES = {
    "weights": "loading the weights of the model",
    "engine": "`deepspeed.initialize`",
    "op": "building or loading a compiled op",
    "rendezvous": "the rendezvous of the ranks",
    "data": "preparing the dataset",
    "saving": "saving",
    "resuming": "resuming",
    "evaluation": "an evaluation",
}


def phase_of_frames(frames: Sequence[Frame]) -> str:
    """The most specific phase that a frame shows; empty where none does."""
    texts = [f"{frame.file} {frame.function}" for frame in frames]
    for name, pattern in _PATTERNS:
        if any(pattern.search(text) for text in texts):
            return name
    return ""


def _is_at_start(frames: Sequence[Frame]) -> bool:
    """Do the script's own frames only import?"""
    own = [frame for frame in frames if not frame.file.startswith("<frozen")]
    return bool(own) and all(frame.function in ("<module>", "") or frame.file.startswith("<frozen") for frame in own)
