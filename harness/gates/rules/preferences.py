# SPDX-License-Identifier: Apache-2.0
"""Training on preferences: what it does not go with, and settings that its loss does not read."""

from __future__ import annotations

from harness.gates.registry import Context, Findings, Fix, spec_gate

_OBJECTIVES = ("dpo", "kto")
_WHOLE_ROWS = (*_OBJECTIVES, "classification", "reward")
_SECTIONS = _WHOLE_ROWS
_SMOOTHED = ("sigmoid", "robust", "exo_pair")
"""Losses that read `dpo.label_smoothing`."""


@spec_gate("MD049 not-with-preferences", upstream="wrong", when=lambda ctx: ctx.run.spec.objective in _WHOLE_ROWS)
def not_with_preferences(ctx: Context) -> Findings:
    """Preferences or labels with packing, split records, or parallel ranks beyond ZeRO.

    `objective: dpo`, `kto`, `reward` or `classification` has no `data.packing: true`, no `data.excess_length_strategy:
    split`, and no degree of `parallel` above 1.

    Why: The loss is of whole records: a row is one pair, one answer or one text, and a rank computes all of it. Packed
    rows, parts of a record, and parts of a sequence or of a model on other ranks have no log-probability of an answer
    and no reward or label.

    Example:
        objective: dpo
        data.packing: true
    """
    spec = ctx.run.spec
    wrong = {
        "data.packing": spec.data.packing,
        "data.excess_length_strategy": spec.data.excess_length_strategy == "split",
        "parallel.tensor_parallel_size": spec.parallel.tensor_parallel_size > 1,
        "parallel.pipeline_parallel_size": spec.parallel.pipeline_parallel_size > 1,
        "parallel.sequence_parallel_size": spec.parallel.sequence_parallel_size > 1,
    }
    what, related, whole = "which compares whole answers", "a row is one pair or one answer", "whole answers"
    if spec.objective == "classification":
        what, related, whole = "whose labels are of whole texts", "a row is one text", "whole texts"
    for key in (key for key, is_wrong in wrong.items() if is_wrong):
        yield ctx.finding(
            f"{ctx.key(key)} does not go with `objective: {spec.objective}`, {what}",
            key,
            related=[("objective", related)],
            fix=ctx.fix_to_remove(key, effect=f"{whole}; memory is saved by `zero.stage: 3` and offload instead"),
        )


@spec_gate("MD050 settings-of-another-objective", severity=("error", "warning"))
def settings_of_another_objective(ctx: Context) -> Findings:
    """Settings of an objective that the run does not have, or that its loss does not read.

    `dpo` is set for `objective: dpo` alone, and `kto`, `classification` and `reward` for those of their names;
    `dpo.label_smoothing` is for the losses `sigmoid`, `robust` and `exo_pair`, and above 0 for the last. An objective
    without dropout reads no `model.lora.lora_dropout`, and one without a loss over tokens no
    `data.assistant_only_loss` and `data.completion_only_loss`.

    Why: Nothing else reads them: the run trains something else than its spec seems to say. `exo_pair` compares with the
    logarithm of the smoothing, which is infinite at 0.

    Example:
        dpo.beta: 0.05
    """
    spec = ctx.run.spec
    for name in _SECTIONS:
        section = getattr(spec, name)
        written = next((field for field in type(section).model_fields if section.is_written(field)), None)
        if written is not None and spec.objective != name:
            yield ctx.unread(
                f"{ctx.key(f'{name}.{written}')} is not read: the run has `objective: {spec.objective}`",
                f"{name}.{written}",
                severity="warning",
                fix=Fix(f"set `objective: {name}`, or remove it", {"objective": name}, effect="another loss"),
            )
    yield from _unread_settings(ctx)
    key, dpo = "dpo.label_smoothing", spec.dpo
    if spec.objective == "dpo" and dpo.label_smoothing and dpo.loss_type not in _SMOOTHED:
        yield ctx.unread(
            f"{ctx.key(key)} is not read by the loss `{dpo.loss_type}`",
            key,
            severity="warning",
            fix=Fix("remove it", {key: None}, effect="the same loss"),
        )
    if spec.objective == "dpo" and dpo.loss_type == "exo_pair" and not dpo.label_smoothing:
        yield ctx.finding(
            "the loss `exo_pair` needs `dpo.label_smoothing` above 0: it is infinite without",
            "dpo.loss_type",
            severity="error",
            fix=Fix(f"set `{key}` to 0.001, as its paper does", {key: 0.001}, effect="a finite loss"),
        )


def _unread_settings(ctx: Context) -> Findings:
    """Settings of tokens' losses and of dropout, which the objective does not read."""
    spec = ctx.run.spec
    if spec.objective not in _WHOLE_ROWS:
        return
    written = {
        "data.assistant_only_loss": (spec.data.is_written("assistant_only_loss"), "the loss is not one of tokens"),
        "data.completion_only_loss": (spec.data.is_written("completion_only_loss"), "the loss is not one of tokens"),
        "model.lora.lora_dropout": (
            spec.model.lora is not None and spec.model.lora.lora_dropout > 0 and spec.objective != "classification",
            "it trains without dropout, as TRL does",
        ),
    }
    for key, (is_written, why) in written.items():
        if is_written:
            yield ctx.unread(
                f"{ctx.key(key)} is not read with `objective: {spec.objective}`: {why}",
                key,
                severity="warning",
                fix=Fix("remove it", {key: None}, effect="the same loss"),
            )
