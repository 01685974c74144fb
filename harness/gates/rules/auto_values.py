# SPDX-License-Identifier: Apache-2.0
""" "auto" in a DeepSpeed JSON, and who fills it in."""

from __future__ import annotations

import json
from collections.abc import Iterator

from harness.facts.deepspeed_keys import MISSING, block_keys
from harness.gates.registry import Cite, Context, Findings, Fix, Severity, gate
from harness.spec.auto_values import (
    CONSUMER_NAMES,
    FILLED_BY_PLUGIN,
    NATIVE_AUTO_KEYS,
    auto_in_deepspeed,
    find_auto_values,
    keys_filled_by,
)
from harness.spec.parse.source import join_key


def _is_read_by_deepspeed(ctx: Context) -> bool:
    """Does DeepSpeed get the values as they are written? So it is for a run spec, too."""
    return ctx.consumer in (None, "deepspeed")


def _find_auto_keys(ctx: Context, meaning: str) -> Iterator[str]:
    """The DeepSpeed keys that are "auto" where DeepSpeed makes `meaning` of it (see `auto_in_deepspeed`)."""
    is_json = ctx.run.kind == "deepspeed-json"
    for path in find_auto_values(ctx.source.data if is_json else ctx.run.spec.deepspeed):
        is_written = (
            not is_json or ctx.source.user_path(path) in ctx.source.spots
        )  # accelerate fills in some of its own
        if is_written and auto_in_deepspeed(path, ctx.target.version) == meaning:
            yield join_key(path)


_OBSERVERS = ("wandb", "tensorboard", "csv_monitor", "comet", "timers", "comms_logger")
_OFFLOADS = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")
_BLOCKS_OF_SIZES = ("zero_optimization", *_OFFLOADS, "fp16")


def _is_default_usual(name: str) -> bool:
    """Is DeepSpeed's default what a file means by "auto": of a size, a loss scale, a monitor or a timer?"""
    block, _, field = name.rpartition(".")
    entry = (block_keys(block) or {}).get(field)
    is_size = entry is not None and entry.type in ("int", "number") and field != "stage"
    return name.startswith(_OBSERVERS) or (is_size and block in _BLOCKS_OF_SIZES)


@gate(
    "HF001 auto-dropped-for-the-default",
    severity=("error", "warning"),
    unread="DeepSpeed drops `auto` for its default",
    cites=Cite("runtime/config_utils.py", 'if (v != "auto" or k == "replace_method")'),
    when=_is_read_by_deepspeed,
)
def dropped_auto(ctx: Context) -> Findings:
    """An "auto" that DeepSpeed drops for its default.

    "auto" in a block that DeepSpeed parses with pydantic, such as `zero_optimization`, `bf16` or `comms_logger`, where
    neither the Hugging Face Trainer nor accelerate reads the file first. Sizes, loss scales, monitors and timers, whose
    default is what most files mean, are a warning.

    Why: DeepSpeed silently drops such values before it parses the block: `stage` becomes 0, `bf16.enabled` false, an
    offload device `none`, and a bucket size its default, which does no harm (run on 0.19.8). Only the Trainer and
    accelerate fill "auto" in.

    Example:
        deepspeed.comms_logger.enabled: true
        deepspeed.comms_logger.verbose: auto

    Use instead:
        deepspeed.comms_logger.enabled: true
        deepspeed.comms_logger.verbose: false
    """
    for name in _find_auto_keys(ctx, "default"):
        parent, _, field = name.rpartition(".")
        entry = (block_keys(parent) or {}).get(field)
        default = entry.default_at(ctx.target.version) if entry is not None else MISSING
        value = "" if default is MISSING or isinstance(default, (dict, list)) else f", `{json.dumps(default)}`"
        is_offload = field in ("device", "nvme_path")
        key = ctx.spec_key(name)
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which DeepSpeed silently drops for its default{value}',
            key,
            severity="warning" if _is_default_usual(name) else "error",
            notes=["the Hugging Face Trainer and accelerate fill such values in, DeepSpeed does not"],
            fix=Fix(
                "write the value, or remove the key, which changes nothing",
                {key: None},
                safe=not is_offload,
                effect="nothing is offloaded, as now" if is_offload else "",
            ),
        )


@gate(
    "HF002 auto-that-counts-as-true",
    cites=Cite("runtime/config_utils.py", "return param_dict.get(param_name, param_default_value)"),
    when=_is_read_by_deepspeed,
)
def auto_as_true(ctx: Context) -> Findings:
    """An "auto" that counts as true.

    "auto" for a switch that DeepSpeed reads without looking at its type, such as `prescale_gradients`,
    `torch_autocast.enabled` or `checkpoint.load_universal`.

    Why: Any text that is not empty is true there, so the switch is on: with `torch_autocast.enabled: "auto"` the
    forward pass runs under autocast (run on 0.19.8). Neither the Trainer nor accelerate fills in any of these.

    Example:
        deepspeed.prescale_gradients: auto
    """
    for name in _find_auto_keys(ctx, "true"):
        key = ctx.spec_key(name)
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which DeepSpeed takes for true as it does any text',
            key,
            notes=["nobody fills in this one"],
            fix=Fix("write `true` or `false`", {key: False}, effect="it is off"),
        )


_FAILURES = {
    "train_batch_size": "DeepSpeed ends with a TypeError while it reads the configuration",
    "train_micro_batch_size_per_gpu": "DeepSpeed ends with a TypeError while it reads the configuration",
    "gradient_accumulation_steps": "DeepSpeed ends with a TypeError while it reads the configuration",
    "gradient_clipping": "DeepSpeed ends with a TypeError at the first step",
    "optimizer": "DeepSpeed ends with an error inside the optimizer, at the first step at the latest",
    "scheduler": "DeepSpeed ends with an error while it builds the scheduler",
}


@gate(
    "HF003 auto-that-fails",
    upstream="raises",
    severity=("error", "warning"),
    cites=Cite("runtime/engine.py", "if self.gradient_clipping() > 0.0:"),
    when=_is_read_by_deepspeed,
)
def failing_auto(ctx: Context) -> Findings:
    """An "auto" that DeepSpeed fails on.

    "auto" for batch sizes, `gradient_clipping`, parameters of optimizer and scheduler, and other values without a
    default to fall back on, where neither the Hugging Face Trainer nor accelerate reads the file first.

    Why: Batch sizes end with a TypeError while the configuration is read, `gradient_clipping` at the first step, a
    learning rate inside the first optimizer step, parameters of a scheduler while the engine is built (run on 0.19.8).
    None of the messages names the key.

    Example:
        deepspeed.communication_data_type: auto

    Use instead:
        deepspeed.communication_data_type: fp32
    """
    for name in _find_auto_keys(ctx, "fails"):
        key = ctx.spec_key(name)
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which DeepSpeed itself does not fill in',
            key,
            severity="warning" if name.startswith("pipeline.") and ctx.pipeline_parallel_size == 1 else "error",
            notes=[_FAILURES.get(name.split(".")[0], "DeepSpeed takes the text as it stands and fails on it later")],
            # only a PipelineModule reads this block
            fix=Fix("write the value, or remove the key", {key: None}, effect="DeepSpeed's default, if it has one"),
        )


@gate(
    "HF004 auto-that-nobody-fills-in",
    upstream="raises",
    when=lambda ctx: ctx.consumer in ("hf", "accelerate"),
    unseen="needs the Hugging Face Trainer or accelerate",
)
def unfilled_auto(ctx: Context) -> Findings:
    """An "auto" that the Trainer or accelerate does not fill in.

    A JSON for the Hugging Face Trainer or for accelerate in which a key is "auto" that they do not know, such as
    `zero_optimization.overlap_comm`, a loss scale, or an optimizer's betas under accelerate alone.

    Why: accelerate walks over the whole file when the model is prepared, under the Trainer too, and ends with a
    ValueError for each "auto" that is still there: "`zero_optimization.overlap_comm` not found in kwargs" (run with
    transformers 5.23 and accelerate 1.15). The same holds for keys whose "auto" is one of DeepSpeed's own values.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 2, "overlap_comm": "auto"}
    }

    Use instead: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 2, "overlap_comm": true}
    }
    """
    consumer = ctx.consumer or "hf"
    filled_keys = keys_filled_by(consumer)
    for path in find_auto_values(ctx.source.data):
        if path in filled_keys or auto_in_deepspeed(path, ctx.target.version) == "unknown":
            continue
        name = join_key(path)
        key = ctx.spec_key(name)
        notes = [f'accelerate ends with "`{name}` not found in kwargs" when the model is prepared']
        if path in NATIVE_AUTO_KEYS:
            notes.append('"auto" is a value of DeepSpeed\'s own here, but accelerate does not pass it on')
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which {CONSUMER_NAMES[consumer]} does not fill in',
            key,
            notes=notes,
            fix=Fix("write the value, or remove the key", {key: None}, effect="DeepSpeed's default"),
        )


_PLUGIN_DEFAULTS = {"stage": 2, "device": "none", "nvme_path": "none"}


@gate(
    "HF005 zero-left-open",
    severity=("error", "warning"),
    when=lambda ctx: ctx.consumer in ("hf", "accelerate"),
    unseen="needs the Hugging Face Trainer or accelerate",
)
def open_zero_settings(ctx: Context) -> Findings:
    """A ZeRO stage or an offload device that TrainingArguments cannot fill in.

    "auto" for `zero_optimization.stage`, an offload device or an NVMe path, in a JSON for the Hugging Face Trainer (an
    error) or for accelerate (a warning).

    Why: The Trainer has no argument for them. accelerate's DeepSpeedPlugin silently fills in its defaults: stage 2, no
    offload (run with transformers 5.23 and accelerate 1.15). A script that makes the plugin itself, or `accelerate
    launch --zero_stage`, can set other values.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_clipping": "auto",
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
      "zero_optimization": {"stage": "auto"}
    }
    """
    paths = [path for path in find_auto_values(ctx.source.data) if path in FILLED_BY_PLUGIN]
    if ctx.consumer == "hf":
        exception = ""
        notes = ["the Trainer has no argument for it, so accelerate's default is taken silently"]
        severity: Severity = "error"
    else:
        exception = " unless the DeepSpeedPlugin or `accelerate launch` says otherwise"
        notes = []
        severity = "warning"
    for path in paths:
        key = ctx.spec_key(join_key(path))
        field = str(path[-1])
        default = _PLUGIN_DEFAULTS[field]
        is_stage = field == "stage"
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which becomes {default}{exception}',
            key,
            severity=severity,
            notes=notes,
            fix=Fix(
                f"write `{default}`, or what is meant",
                {key: default},
                effect="ZeRO stage 2, whatever accelerate's settings are"
                if is_stage
                else "nothing is offloaded, as now",
            ),
        )


@gate("HF010 clipping-that-becomes-one", severity="warning", unseen="needs accelerate")
def clipping_of_one(ctx: Context) -> Findings:
    """`gradient_clipping: "auto"` under accelerate.

    A JSON for accelerate in which `gradient_clipping` is "auto".

    Why: Unless the DeepSpeedPlugin or the environment says something else, accelerate fills in 1.0 (run with accelerate
    1.15). The limit that a script gives to `accelerator.clip_grad_norm_` has no effect under DeepSpeed.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 2, "stage3_gather_16bit_weights_on_model_save": "auto"}
    }
    """
    key = "train.max_grad_norm"
    if ctx.consumer == "accelerate" and ctx.is_auto("gradient_clipping") and ctx.source.has_key(key):
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which becomes 1.0 unless accelerate has another value',
            key,
            notes=["the limit that a script gives to `accelerator.clip_grad_norm_` is not used under DeepSpeed"],
            fix=Fix(
                "write 1.0, or the limit that is meant", {key: 1.0}, effect="1.0, whatever accelerate's settings are"
            ),
        )
