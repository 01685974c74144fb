# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeed JSON for the Hugging Face Trainer or accelerate."""

from __future__ import annotations

from harness.gates.optimizer_facts import SCHEDULERS, get_scheduler_name
from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.spec.auto_values import FROM_TRAINING_ARGUMENTS
from harness.spec.parse.source import join_key


@gate(
    "HF006 clipping-that-never-arrives",
    severity=("warning", "info"),
    unseen="needs the Hugging Face Trainer",
)
def missing_clipping(ctx: Context) -> Findings:
    """A file for the Trainer without `gradient_clipping`.

    A JSON for the Hugging Face Trainer that does not have the key `gradient_clipping`.

    Why: Under DeepSpeed the Trainer leaves clipping to DeepSpeed, and it fills in only the keys that are "auto" in the
    file. Without the key, DeepSpeed never gets `max_grad_norm` and uses its own default: no clipping up to 0.19.2, a
    warning; 1.0 from 0.19.3 on, which is the Trainer's default as well, so that only another limit is lost.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "zero_optimization": {"stage": 2}
    }
    """
    if ctx.consumer == "hf" and not ctx.has_key("gradient_clipping"):
        key = "train.max_grad_norm"
        is_same_default = ctx.target.version >= (0, 19, 3)
        behavior = "clips at 1.0" if is_same_default else "does not clip"
        yield ctx.finding(
            f"without {ctx.key(key)} DeepSpeed never gets the Trainer's `max_grad_norm`: it {behavior}",
            key,
            severity="info" if is_same_default else "warning",
            notes=["the Trainer leaves clipping to DeepSpeed and fills in only `auto`"],
            fix=Fix('write `"gradient_clipping": "auto"`', {key: "auto"}, effect="the Trainer's limit is used"),
        )


@gate(
    "HF109 rate-constant-after-the-warm-up",
    severity=("warning", "info"),
    cites=Cite("runtime/lr_schedules.py", "over warmup_num_steps steps, and then fix at max lr"),
    when=lambda ctx: ctx.consumer == "hf" and get_scheduler_name(ctx) in SCHEDULERS,
    unseen="needs the Hugging Face Trainer",
)
def constant_rate_under_the_trainer(ctx: Context) -> Findings:
    """A Trainer's JSON whose scheduler never lowers the rate.

    `scheduler.type` in a JSON for the Hugging Face Trainer: a warning for `WarmupLR`, an info for the others.

    Why: A scheduler in the file replaces the Trainer's own, and `WarmupLR` keeps the peak after its warm-up. The
    Trainer's `lr_scheduler_type`, linear by default, and its `lr_scheduler_kwargs` then have no effect; only the rate
    and the warm-up steps are filled in (read in transformers 5 `integrations/deepspeed.py`).

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto",
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
      "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
      },
      "zero_optimization": {"stage": 2}
    }
    """
    key, name = "deepspeed.scheduler", get_scheduler_name(ctx)
    effect = {"WarmupLR": "keeps the rate constant after its warm-up", "WarmupDecayLR": "lets the rate fall to 0"}
    yield ctx.finding(
        f"`{name}` {effect.get(name, 'sets the rate')}, whatever the Trainer's `lr_scheduler_type` says",
        f"{key}.type",
        severity="warning" if name == "WarmupLR" else "info",
        label="this one counts",
        notes=['`WarmupDecayLR` with `total_num_steps` of "auto" is the Trainer\'s linear decay'],
        fix=ctx.fix_to_remove(key, effect="the rate follows `lr_scheduler_type`"),
    )


@gate(
    "HF007 weights-not-gathered-on-save",
    severity="warning",
    cites=Cite("runtime/engine.py", "Did not save the model"),
    when=lambda ctx: ctx.consumer in ("hf", "accelerate") and ctx.stage == 3,
    unseen="needs the Hugging Face Trainer or accelerate",
)
def ungathered_weights(ctx: Context) -> Findings:
    """ZeRO stage 3 whose weights are not gathered on save, under the Trainer or accelerate.

    A JSON for the Hugging Face Trainer or for accelerate with `zero_optimization.stage` 3, and without
    `stage3_gather_16bit_weights_on_model_save: true`.

    Why: `save_model` then has no whole weights: DeepSpeed's `save_16bit_model` logs this and returns False, and the
    Trainer writes a sharded checkpoint instead, in which a loader or an exporter finds no weights. Nothing is lost:
    `python zero_to_fp32.py CHECKPOINT OUT` makes a model of it on a CPU, 4 bytes a parameter, 2 once saved in bf16.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 3}
    }
    """
    if ctx.run.spec.zero.stage3_gather_16bit_weights_on_model_save:
        return
    switch = "zero.stage3_gather_16bit_weights_on_model_save"
    key = switch if ctx.source.has_key(switch) else "zero.stage"
    subject = f"without {ctx.key(switch)}" if key != switch else f"with {ctx.key(switch)} false"
    if ctx.is_auto("zero_optimization.stage3_gather_16bit_weights_on_model_save"):
        subject = f'with {ctx.key(switch)} "auto", which becomes false,'
    yield ctx.finding(
        f"{subject} no whole model is saved at ZeRO stage 3",
        key,
        notes=[
            "the Trainer and accelerate save shards (`global_step*`) instead; `zero_to_fp32.py` makes a model of them,"
            " in fp32: 4 bytes a parameter, twice a bf16 model"
        ],
        fix=ctx.fix_to_set(switch, True, effect="rank 0 gathers all weights in host memory on save"),
    )


@gate(
    "HF008 values-that-the-trainer-compares",
    upstream="raises",
    severity="info",
    when=lambda ctx: ctx.consumer in ("hf", "accelerate"),
    unseen="needs the Hugging Face Trainer or accelerate",
)
def compared_values(ctx: Context) -> Findings:
    """Values that must match TrainingArguments.

    A JSON for the Hugging Face Trainer that writes out a batch size, the clipping, a learning rate or another value
    that TrainingArguments have, too; an accelerate YAML with `gradient_accumulation_steps` or `gradient_clipping`.

    Why: The Trainer refuses to start when one of them differs: "Please correct the following DeepSpeed config values
    that mismatch TrainingArguments values". The same holds for accelerate's own YAML, including `mixed_precision`.
    Without the Trainer, accelerate takes the file's values: the 4 steps of a YAML silently replace the 2 of an
    Accelerator, and those of a GradientAccumulationPlugin with a warning; the limit of `clip_grad_norm_` is not used
    (run with transformers 5.24 and accelerate 1.15). Equal values do no harm.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": 4,
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 2}
    }
    """
    names = map(join_key, FROM_TRAINING_ARGUMENTS)
    keys = [ctx.spec_key(name) for name in names if ctx.has_key(name) and not ctx.is_auto(name)]
    keys.sort(key=lambda key: _get_position(ctx, key))
    named, notes = keys, []
    if ctx.consumer == "accelerate":
        named = [key for key in keys if _is_own_field(ctx, key)]
        notes = ["without the Trainer, this file silently overrides the script's values in accelerate"]
    if not named:
        return
    first, *others = named
    more = ""
    if len(others) == 1:
        more = f" and {ctx.key(others[0])}"
    elif others:
        more = f" and {len(others)} more"
    yield ctx.finding(
        f"{ctx.key(first)}{more} must say the same as TrainingArguments, or the Trainer does not start",
        first,
        related=[(key, "and this") for key in keys if key != first],
        notes=notes,
        fix=_leave_open_fix(ctx, keys),
    )


def _is_own_field(ctx: Context, key: str) -> bool:
    """Is it in the `deepspeed_config` of accelerate's YAML?"""
    return ctx.source.user_key(key).startswith("deepspeed_config.")


def _leave_open_fix(ctx: Context, keys: list[str]) -> Fix:
    """ "auto" for the keys that take it; accelerate's own fields take none, and may be left out."""
    own = [key for key in keys if _is_own_field(ctx, key)]
    if own:
        names = " and ".join(map(ctx.key, own))
        return Fix(f"remove {names}", dict.fromkeys(own), effect="the values of TrainingArguments or of the script")
    open_keys = [key for key in keys if ctx.source.user_key(key) != "mixed_precision"]
    if open_keys:
        return Fix('write "auto"', dict.fromkeys(open_keys, "auto"), effect="the values of TrainingArguments are used")
    precision = "fp16" if ctx.is_enabled("fp16") else "bf16"
    return Fix(f'give the Trainer `--{precision}` too; `mixed_precision` takes no "auto"')


def _get_position(ctx: Context, key: str) -> tuple[int, int]:
    place = ctx.source.place(key)
    return place.line, place.column


@gate("HF009 no-zero-block", upstream="raises", unseen="needs the Hugging Face Trainer or accelerate")
def no_zero_block(ctx: Context) -> Findings:
    """A file for the Trainer or accelerate without `zero_optimization`.

    A JSON for the Hugging Face Trainer or for accelerate that has no `zero_optimization` block.

    Why: accelerate refuses it, under the Trainer too: "Please specify the ZeRO optimization config in the DeepSpeed
    config" (run with accelerate 1.15). DeepSpeed itself would train at stage 0.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_clipping": "auto"
    }
    """
    if ctx.consumer not in ("hf", "accelerate") or ctx.has_key("zero_optimization"):
        return
    if not ctx.is_enabled("autotuning"):  # the autotuner writes the block into each file that it tries
        yield ctx.finding(
            "there is no `zero_optimization` block, without which accelerate and the Trainer refuse the file",
            "zero.stage",
            notes=['accelerate ends with "Please specify the ZeRO optimization config in the DeepSpeed config"'],
            fix=Fix('write `"zero_optimization": {"stage": 0}`', {"zero.stage": 0}, effect="trains without ZeRO"),
        )


_DUMMIES = {"optimizer": "DummyOptim", "scheduler": "DummyScheduler"}


@gate(
    "HF011 blocks-that-need-dummies",
    upstream="raises",
    severity="info",
    when=lambda ctx: ctx.consumer == "accelerate",
    unseen="needs accelerate",
)
def blocks_that_need_dummies(ctx: Context) -> Findings:
    """An optimizer or scheduler in a file for accelerate.

    A JSON for accelerate with an `optimizer` or `scheduler` block.

    Why: accelerate then needs `DummyOptim` and `DummyScheduler` from the script, and refuses real ones: "You cannot
    specify an optimizer in the config file and in the code at the same time" (read in accelerate 1.15,
    `accelerator.py`). Without the blocks the script's own objects are used.

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
      "zero_optimization": {"stage": 2, "stage3_gather_16bit_weights_on_model_save": "auto"}
    }
    """
    blocks = [name for name in _DUMMIES if ctx.has_key(name)]
    if blocks:
        keys = [f"deepspeed.{name}" for name in blocks]
        names = " and ".join(f"`{name}`" for name in blocks)
        dummies = " and ".join(_DUMMIES[name] for name in blocks)
        yield ctx.finding(
            f"{names} in the file: the script must pass accelerate's {dummies}",
            keys[0],
            notes=["accelerate refuses a real one together with the block"],
            fix=Fix("pass them, or remove the blocks", dict.fromkeys(keys), effect="the script's own objects are used"),
            of_key=True,
        )


@gate(
    "HF012 gradients-divided-twice",
    upstream="wrong",
    severity=("error", "warning"),
    since="0.18.3",
    until="0.18.3",
    when=lambda ctx: ctx.consumer == "hf",
)
def gradients_divided_twice(ctx: Context) -> Findings:
    """Gradients that are divided twice under the Trainer.

    A JSON for the Hugging Face Trainer with more than one accumulation step, on DeepSpeed 0.18.3. Where the number of
    steps is left to the Trainer's arguments, it warns.

    Why: The Trainer (transformers 4.49 and newer) divides the loss by the accumulation steps itself and calls
    `engine.backward(loss, scale_wrt_gas=False)`. 0.18.3 divides the gradients as well, so they and the norm, which is
    logged and compared with the clipping limit, are too small by the number of steps. This happens at every stage, with
    and without offload. SGD takes smaller steps; Adam with clipping clips too little; Adam without clipping takes the
    same steps, only the norm is wrong. 0.18.2 and 0.18.4 are right (the Trainer's calls, run on all three with 2
    ranks). A script that calls `engine.backward(loss)` is not affected (run), nor is accelerate without the Trainer,
    which calls it that way (read in accelerate 1.15).

    Example: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 1}
    }

    Use instead: The same file on DeepSpeed 0.18.4. On 0.18.3, one micro-batch a step, here and in TrainingArguments: {
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 1}
    }
    """
    steps = ctx.accumulation
    if steps == 1:
        return
    is_unclipped = ctx.gradient_clipping == 0 and not ctx.is_auto("gradient_clipping")
    is_norm_alone_wrong = is_unclipped and ctx.optimizer.name in ("adam", "adamw")
    notes = []
    if not steps:
        notes.append("with one micro-batch a step it is right; the Trainer's arguments say how many there are")
    if is_norm_alone_wrong:
        notes.append("Adam without clipping takes nearly the same steps; the norm in the logs is too small")
    else:
        notes.append("the norm that is logged and clipped is too small as well")
    key = "train.gradient_accumulation_steps"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} divides the gradients of the Trainer by the accumulation steps a second time",
        key,
        severity="error" if steps and not is_norm_alone_wrong else "warning",
        label=f"gradients are too small by a factor of {steps}" if steps else "not known here",
        notes=notes,
        fix=Fix(
            f"upgrade to DeepSpeed 0.18.4, or remove {ctx.key(key)} here and set it to 1 in TrainingArguments",
            {key: None},
            effect="gradients are whole; a step sees fewer rows unless the micro-batch grows by as much",
        ),
    )
