# SPDX-License-Identifier: Apache-2.0
"""Settings that every run spec needs, once."""

from __future__ import annotations

from harness.gates.registry import Context, Findings, Fix, spec_gate
from harness.run.objective_facts import facts_of


@spec_gate("MD001 no-model-or-two", upstream="raises")
def no_model_or_two(ctx: Context) -> Findings:
    """A run spec that names no model, or two.

    Exactly one of `model.name_or_path` and `model.config` is given, but for `objective: custom`, which has neither.

    Why: There is no model to train, or it is not clear which. DeepSpeed does not check this, since it gets a finished
    model.

    Example:
        model.name_or_path: null
    """
    model = ctx.run.spec.model
    if not facts_of(ctx.run.spec.objective).loads_model:
        return
    if model.name_or_path and model.config:
        key = "model.config"
        yield ctx.finding(
            "`model.name_or_path` and `model.config` both name a model",
            key,
            related=[("model.name_or_path", "the other one")],
            fix=Fix(
                "keep one: `name_or_path` starts from its weights, `config` from random ones",
                {key: None},
                effect="trains from the weights in `name_or_path`",
            ),
        )
    elif not model.name_or_path and not model.config:
        key = "model.name_or_path"
        yield ctx.finding(
            "neither `model.name_or_path` nor `model.config` names a model",
            key,
            fix=Fix(
                "set `model.name_or_path` to a folder or Hub name, or write out `model.config`",
                {key: "meta-llama/Llama-3.1-8B"},
                effect="decides what is trained",
            ),
        )
    elif model.config is not None and "model_type" not in model.config:
        yield ctx.finding(
            "`model.config` has no `model_type`, so its architecture is unknown",
            "model.config",
            fix=Fix(
                "set `model.config.model_type`, such as `llama`",
                {"model.config.model_type": "llama"},
                effect="decides what is trained",
            ),
        )


@spec_gate("MD002 no-training-data", upstream="raises")
def no_training_data(ctx: Context) -> Findings:
    """A run spec that names no training data.

    `data.train` is given.

    Why: There is nothing to train on.

    Example:
        data.max_length: 1024

    Use instead:
        data.train: corpus/*.txt
    """
    spec = ctx.run.spec
    has_code = spec.plugins.file or spec.plugins.script
    brings_data = has_code or not facts_of(spec.objective).loads_model
    if not spec.data.train and not brings_data:
        key = "data.train"
        yield ctx.finding(
            "`data.train` is not given",
            key,
            fix=Fix(
                "set `data.train` to files, a glob, a Hub dataset or `builtin:python-docs`",
                {key: "builtin:python-docs"},
                effect="decides what is trained on",
            ),
        )


@spec_gate("MD003 no-training-length", upstream="raises")
def no_training_length(ctx: Context) -> Findings:
    """A run without an end.

    `train.max_steps` or `train.num_train_epochs` is given.

    Why: Nothing says when training is over, and the learning rate schedule needs the number of steps.

    Example:
        train.max_steps: null

    Use instead:
        train.max_steps: 1000
    """
    train = ctx.run.spec.train
    if not train.max_steps and not train.num_train_epochs:
        yield ctx.finding(
            "neither `train.max_steps` nor `train.num_train_epochs` is given",
            "train.max_steps",
            fix=Fix(
                "set `train.num_train_epochs` or `train.max_steps`",
                {"train.num_train_epochs": 1.0},
                effect="one pass over the data",
            ),
        )


@spec_gate("MD006 two-lengths-of-training", severity="warning", unread="`max_steps` decides")
def two_training_lengths(ctx: Context) -> Findings:
    """Two lengths of training.

    `train.max_steps` and `train.num_train_epochs` are not both written.

    Why: `max_steps` takes precedence and the epochs are ignored, so the run is longer or shorter than one of the two
    says.

    Example:
        train.max_steps: 100
        train.num_train_epochs: 3
    """
    train = ctx.run.spec.train
    if train.max_steps is not None and train.num_train_epochs is not None:
        key = "train.num_train_epochs"
        yield ctx.unread(
            f"{ctx.key(key)} is not read, since `train.max_steps` is {train.max_steps}",
            key,
            related=[("train.max_steps", "this one decides")],
            fix=Fix("remove one of the two", {key: None}, safe=True),
        )


@spec_gate(
    "MD017 options-of-a-named-model",
    severity=("warning", "info"),
    unread="no model is loaded by name",
)
def options_without_named_model(ctx: Context) -> Findings:
    """Options for a named model without a name.

    `model.revision` and `model.random_init` without `model.name_or_path`.

    Why: A model that is written out in `model.config` has no revision, and its weights are random in any case.

    Example:
        model.config: {model_type: llama}
        model.revision: main
    """
    model = ctx.run.spec.model
    if model.name_or_path is not None or model.config is None:
        return
    for name in ("revision", "random_init"):
        key = f"model.{name}"
        if getattr(model, name):
            yield ctx.unread(
                f"{ctx.key(key)} is for a model that `model.name_or_path` names",
                key,
                severity="warning" if name == "revision" else "info",
            )


@spec_gate("MD015 ignore-without-a-reason", severity="warning")
def ignore_without_reason(ctx: Context) -> Findings:
    """A gate that is ignored without a reason.

    Each entry of `ignore` has a text that is not empty.

    Why: Somebody else may read an `ignore` months later, when the results are reviewed. Without a reason nobody knows
    whether it still applies.

    Example:
        checkpoint.save_at_end: false
        ignore.CK009: ""

    Use instead:
        checkpoint.save_at_end: false
        ignore.CK009: a measurement of speed
    """
    for name, reason in ctx.run.spec.ignore.items():
        key = f"ignore.{name}"
        if not reason.strip():
            yield ctx.finding(
                f"{ctx.key(key)} gives no reason",
                key,
                notes=["a later reader cannot tell whether it still applies"],
                fix=Fix("write why"),
            )
