# SPDX-License-Identifier: Apache-2.0
"""Sources, mixtures, packing and evaluation data."""

from __future__ import annotations

from collections.abc import Iterable

from harness.facts import model_table
from harness.gates.registry import Context, Findings, Fix, Severity, spec_gate
from harness.spec.sections.data_spec import CHAT_FORMATS


@spec_gate("MD011 evaluation-without-data", severity="warning", unread="nothing is evaluated")
def evaluation_without_data(ctx: Context) -> Findings:
    """Evaluation of nothing.

    A key of the `eval` section while `data.eval` is not given and `data.eval_fraction` is 0.

    Why: Nothing is held out, so the run evaluates nothing, not even at the end.

    Example:
        data.eval_fraction: 0.0
        eval.eval_steps: 5

    Use instead:
        data.eval_fraction: 0.1
        eval.eval_steps: 5
    """
    spec = ctx.run.spec
    if spec.data.eval is not None or spec.data.eval_fraction > 0:
        return
    for name in ("eval_steps", "per_device_eval_batch_size", "max_batches", "early_stopping_patience", "samples"):
        key = f"eval.{name}"
        if spec.eval.is_written(name):
            yield ctx.unread(
                f"{ctx.key(key)} has nothing to evaluate on: `data.eval_fraction` is 0 and `data.eval` is not given",
                key,
                related=[("data.eval_fraction", "nothing is held out")],
                fix=Fix("remove it, or give `data.eval` or `data.eval_fraction`", {key: None}, safe=True),
            )


@spec_gate("MD169 samples-of-a-divided-model", upstream="hangs")
def samples_of_a_divided_model(ctx: Context) -> Findings:
    """Samples of a model whose ranks do not see whole rows or whole layers.

    `eval.samples` with pipeline stages, tensor ranks or sequence ranks.

    Why: Each token takes a forward of the whole model on whole rows. A stage has some of the layers alone, and a
    sequence rank a part of each row; tensor ranks were not run.

    Example:
        eval.samples: [Once upon a time]
        parallel.tensor_parallel_size: 2
        launch.num_gpus: 2
    """
    degrees = {
        "parallel.pipeline_parallel_size": ctx.pipeline_parallel_size,
        "parallel.tensor_parallel_size": ctx.tensor_parallel_size,
        "parallel.sequence_parallel_size": ctx.run.spec.parallel.sequence_parallel_size,
    }
    divided = next((key for key, degree in degrees.items() if degree > 1), None)
    if ctx.run.spec.eval.samples and divided is not None:
        yield ctx.finding(
            f"`eval.samples` are not generated with `{divided}: {degrees[divided]}`",
            "eval.samples",
            related=[(divided, "divides the model or its rows")],
            fix=Fix(
                "remove `eval.samples`; `export.at_end: true` with `export.sample_prompt` generates from the export",
                {"eval.samples": None},
                effect="trains the same",
            ),
        )


@spec_gate("MD170 sample-options-without-samples", severity="warning", unread="nothing is generated")
def sample_options_without_samples(ctx: Context) -> Findings:
    """Options of samples that are not generated.

    `eval.sample_tokens` and `eval.sample_format` without `eval.samples`.

    Why: They are for the prompts of `eval.samples`, of which there is none.

    Example:
        eval.sample_format: chat

    Use instead:
        eval.sample_format: chat
        eval.samples: [The number after 41 is]
    """
    spec = ctx.run.spec.eval
    for name in ("sample_tokens", "sample_format"):
        key = f"eval.{name}"
        if spec.is_written(name) and not spec.samples:
            yield ctx.unread(
                f"{ctx.key(key)} is read only with {ctx.key('eval.samples')}",
                key,
                fix=Fix("give prompts in `eval.samples`, or remove it", {key: None}, safe=True),
            )


@spec_gate("MD012 fraction-with-evaluation-data", severity="warning", unread="`data.eval` decides")
def fraction_with_evaluation_data(ctx: Context) -> Findings:
    """A held-out share next to evaluation data.

    `data.eval` and `data.eval_fraction` are not both written.

    Why: With separate evaluation data nothing is held out of the training text, whatever the fraction is.

    Example:
        data.eval: held_out/*.txt
        data.eval_fraction: 0.2
    """
    data = ctx.run.spec.data
    # 0 says the same as `data.eval`
    has_fraction = data.is_written("eval_fraction") and data.eval_fraction != 0
    if data.eval is not None and has_fraction:
        key = "data.eval_fraction"
        yield ctx.unread(
            f"{ctx.key(key)} is not read, since `data.eval` names the text to evaluate on",
            key,
            related=[("data.eval", "this one decides")],
            fix=Fix("remove one of the two", {key: None}, safe=True),
        )


@spec_gate("MD018 source-of-weight-0", severity=("error", "warning"))
def source_of_weight_0(ctx: Context) -> Findings:
    """A source of weight 0 in the mixture.

    No weight of `data.train` is 0.

    Why: A source of weight 0 is left out: nothing of it is trained on.

    Example:
        data.train: [{path: chats.jsonl, weight: 1}, {path: code.jsonl, weight: 0}]
    """
    sources = ctx.run.spec.data.train or ()
    others = [source.model_dump(exclude_unset=True) for source in sources if source.weight != 0]
    severity: Severity = "warning" if others else "error"
    sets = {"data.train": others} if others else {}
    fix = Fix("remove the source, or set a weight above 0", sets, effect="trains on the same")
    for i, source in enumerate(sources):
        if source.weight == 0:
            yield ctx.finding(
                f"`{source.path}` has weight 0: nothing of it is trained on",
                f"data.train.{i}.weight",
                severity=severity,
                fix=fix,
            )


@spec_gate("MD019 weights-of-some-sources")
def weights_of_some_sources(ctx: Context) -> Findings:
    """A mixture in which only some sources have a weight.

    Either all sources of `data.train` have a `weight`, or none has.

    Why: Weights are shares relative to each other. A source without a weight has no defined share.

    Example:
        data.train: [{path: chats.jsonl, weight: 0.3}, {path: code.jsonl}]
    """
    sources = ctx.run.spec.data.train or ()
    indices = [i for i, source in enumerate(sources) if source.weight is None]
    if 0 < len(indices) < len(sources):
        names = ", ".join(f"`{sources[i].path}`" for i in indices[:3])
        verb = "has" if len(indices) == 1 else "have"
        yield ctx.finding(
            f"{names} {verb} no `weight`, other sources of `data.train` have one",
            f"data.train.{indices[0]}",
            fix=Fix(
                "remove every `weight`, or give every source one",
                {"data.train": [source.model_dump(exclude_unset=True, exclude={"weight"}) for source in sources]},
                effect="trains on each record once an epoch",
            ),
        )


@spec_gate("MD020 packing-across-documents", upstream="wrong")
def packing_across_documents(ctx: Context) -> Findings:
    """Packing with a model whose attention runs across the documents of a row.

    With `data.packing`, the model keeps documents apart by position ids that restart: dense attention with rotary or
    learnt positions, by `sdpa` or `eager`. A type that no comparison has is asked where `transformers` is installed, by
    a small copy of its configuration, and is an error elsewhere. `sdpa_varlen`, `flash_attention_2` and
    `flash_attention_3` get the document boundaries from the harness; in a pipeline and with `train.torch_compile` flash
    attention finds them itself, in batches of one row.

    Why: transformers makes a block-diagonal mask from position ids that restart. Models with ALiBi (Bloom, MPT), with
    positions counted from the mask (OPT), and recurrent or hybrid ones (Mamba, Qwen3-Next, Qwen3.5, Jamba, Nemotron-H,
    Granite 4) take no such mask: each document would see the ones before it, and the loss would look better than it is.
    transformers itself gives flash attention the document boundaries only in batches of one row (`_is_packed_sequence`;
    read there, not run here).

    Example:
        model.config: {model_type: opt, vocab_size: 320, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4}
        data.packing: true
    """
    spec = ctx.run.spec
    if not spec.data.packing:
        return
    key = "data.packing"
    model_type = (spec.model.config or {}).get("model_type") or (ctx.model.family if ctx.model else None)
    if model_table.holds(model_type, "apart") is False and model_table.holds(model_type, "causal"):
        yield ctx.finding(
            f"models of type `{model_type}` attend across the documents of a packed row",
            key,
            notes=[
                "the model does not see where a document ends, and attends to the one before",
                *filter(None, (model_table.release_note(),)),
            ],
            fix=Fix("set `data.packing: false`", {key: False}, effect="more padding, fewer tokens a step"),
        )
    attention = spec.model.attn_implementation
    rows = spec.train.per_device_train_batch_size
    finds_borders = ctx.pipeline_parallel_size > 1 or spec.train.torch_compile
    if attention in ("flash_attention_2", "flash_attention_3") and finds_borders and rows and rows > 1:
        yield ctx.finding(
            f"`{attention}` in a pipeline or compiled keeps packed documents apart only in batches of one row, "
            f"not {rows}",
            key,
            related=[("train.per_device_train_batch_size", "rows at once")],
            fix=Fix("set `train.per_device_train_batch_size: 1` and a longer `data.max_length`"),
        )


_FORMATS_OF_OPTIONS = {
    "assistant_only_loss": CHAT_FORMATS,
    "completion_only_loss": ("prompt-completion", "alpaca"),
    "text_column": ("text",),
    "prompt_column": ("prompt-completion",),
    "completion_column": ("prompt-completion",),
    "messages_column": ("messages", "sharegpt"),
}
"""Option of `data` -> the formats that read it."""


@spec_gate(
    "MD021 option-of-another-format",
    severity="warning",
    unread="records of this format have one loss, and columns of their own",
)
def option_of_another_format(ctx: Context) -> Findings:
    """A column or a loss mask option for another data format.

    `data.assistant_only_loss` and `data.messages_column` are written only where `data.format` can be a chat,
    `data.completion_only_loss`, `data.prompt_column` and `data.completion_column` only where it can be prompts with
    completions, `data.text_column` only where it can be text.

    Why: It has no effect: each format has its own columns and its own rule for the loss, and plain text trains on every
    token.

    Example:
        data.format: text
        data.assistant_only_loss: true
    """
    data = ctx.run.spec.data
    formats = {source.format or data.format for source in data.train or ()} or {data.format}
    for field, readers in _FORMATS_OF_OPTIONS.items():
        if data.is_written(field) and not formats & {"auto", *readers}:
            key = f"data.{field}"
            yield ctx.finding(
                f"{ctx.key(key)} is not read: the format is {_format_names(sorted(formats))}",
                key,
                notes=[f"it is for {_format_names(readers)}"],
                fix=Fix("remove it", {key: None}, safe=True),
            )


def _format_names(names: Iterable[str]) -> str:
    """The names in backticks, with `and` between them."""
    return " and ".join(f"`{name}`" for name in names)


@spec_gate("MD022 limit-without-skipping", severity="warning", unread="no record is skipped")
def limit_without_skipping(ctx: Context) -> Findings:
    """A limit on bad records that are not skipped.

    `data.max_bad_records` is written only with `data.on_bad_record: skip`.

    Why: The first bad record ends the preparation, so that the limit is never reached.

    Example:
        data.max_bad_records: 20

    Use instead:
        data.on_bad_record: skip
        data.max_bad_records: 20
    """
    data = ctx.run.spec.data
    if data.is_written("max_bad_records") and data.on_bad_record != "skip":
        key = "data.max_bad_records"
        yield ctx.finding(
            f"{ctx.key(key)} is not read, since `data.on_bad_record` is `stop`",
            key,
            fix=Fix("remove it, or set `data.on_bad_record: skip`", {key: None}, safe=True),
        )


@spec_gate("MD023 grouping-without-effect", severity="warning", unread="rows of equal length have no groups")
def grouping_without_effect(ctx: Context) -> Findings:
    """Grouping by length with equal lengths or a fixed order.

    `data.group_by_length: true` is not written together with `data.packing` or `data.shuffle: false`.

    Why: Packed sequences are all filled up to `data.max_length`, and without shuffling the order is that of the files.
    It would have no effect.

    Example:
        data.packing: true
        data.group_by_length: true
    """
    data = ctx.run.spec.data
    is_grouped = data.is_written("group_by_length") and data.group_by_length
    if is_grouped and (data.packing or not data.shuffle):
        key = "data.group_by_length"
        other = "data.packing" if data.packing else "data.shuffle"
        yield ctx.finding(
            f"{ctx.key(key)} has no effect with `{other}: {str(data.packing).lower()}`",
            key,
            related=[(other, "this one decides")],
            fix=Fix("remove it", {key: None}, safe=True),
        )
