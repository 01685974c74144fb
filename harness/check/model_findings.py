# SPDX-License-Identifier: Apache-2.0
"""The model of a run against what the run does with it: the next token, packed documents, parallel degrees, adapters.

Where the table does not know, the model is asked (`harness.hostinfo.model_answers`). The ranks ask the same before they
train, so a model whose configuration is not on this machine is left to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.facts.language_model import find_answers
from harness.facts.model_lookup import find_configuration
from harness.findings import Finding, Fix
from harness.hostinfo.model_answers import ModelAnswers
from harness.spec.named_paths import is_placeholder
from harness.spec.run_spec import RunSpec

_PACKING = "data.packing"


def check_model_kind(spec: RunSpec) -> list[Finding]:
    """The findings MD164 (not a causal language model), MD020 (packing), SQ101, TP027 and PP101 (degrees), MD166
    (adapters), MD167 (weights) and MD168 (recomputation). None where a plug-in builds the model.
    """
    model, packing = spec.model, spec.data.packing
    if spec.plugins.file is not None or (model.name_or_path is not None and is_placeholder(model.name_or_path)):
        return []
    config = find_configuration(model.name_or_path, model.config, None, model.revision)
    if config is None:
        return list(_not_at_hand(model.name_or_path)) if packing and model.name_or_path else []
    kind = config.get("model_type")
    if not isinstance(kind, str):  # MD102 and the plan say so
        return []
    degrees = _degrees_of(spec)
    questions = (*(["apart"] if packing else []), *degrees)
    answers = find_answers(config, questions, own_code=model.trust_remote_code)
    key = "model.config" if model.config is not None else "model.name_or_path"
    if answers.causal is not True:
        return list(_not_causal(kind, answers.causal, answers.why_causal, key, packing=packing))
    findings = [packing_finding(kind, answers.apart, answers.why_apart)] if packing and not answers.apart else []
    if "auto_map" not in config or not model.trust_remote_code:  # whose own code the ranks ask
        findings += _degree_findings(kind, degrees, answers)
    return [*findings, *_layer_findings(spec, kind, answers)]


_DEGREES = {
    "sequence": (
        "SQ101",
        "sequence_parallel_size",
        "is not split over a sequence group",
        "split over a sequence group",
    ),
    "tensor": ("TP027", "tensor_parallel_size", "is not divided by AutoTP", "divided by AutoTP as it should be"),
    "pipeline": ("PP101", "pipeline_parallel_size", "is no plain stack of layers", "a plain stack of layers"),
}
"""By question: the finding, the key, what is wrong, and what is not known."""


def _degrees_of(spec: RunSpec) -> list[str]:
    """The questions about degrees above 1. A plan of the run's own for AutoTP is not that of the model; the layers of
    a pipeline are divided without AutoTP.
    """
    parallel, block = spec.parallel, spec.deepspeed.get("tensor_parallel")
    has_plan = isinstance(block, dict) and bool(block.get("preset_model") or block.get("partition_config"))
    sizes = {
        "sequence": parallel.sequence_parallel_size,
        "tensor": 1 if has_plan or (parallel.pipeline_parallel_size or 1) > 1 else parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
    }
    return [question for question, size in sizes.items() if isinstance(size, int) and size > 1]


def _degree_findings(kind: str, degrees: Sequence[str], answers: ModelAnswers) -> Iterator[Finding]:
    for question in degrees:
        answer = answers.answer_to(question)
        if answer.holds:
            continue
        gate, name, wrong, unknown = _DEGREES[question]
        key = f"parallel.{name}"
        text = wrong if answer.holds is False else f"is not known to be {unknown}"
        notes = (answer.reason, *([f"its layers: {', '.join(answer.names)}"] if answer.names else []))
        fix = Fix(f"set `{key}: 1`", {key: 1}, effect="more data-parallel ranks; `zero.stage: 3` for large models")
        yield Finding(gate, "error", f"a model of type `{kind}` {text}", key, notes=notes, fix=fix)


def _layer_findings(spec: RunSpec, kind: str, answers: ModelAnswers) -> Iterator[Finding]:
    """Warnings about what is known to go wrong, of a model that nobody asks for these alone."""
    lora = spec.model.lora
    if lora is not None and lora.target_modules == "all-linear":
        question = "qlora" if spec.model.quantization is not None else "lora"
        answer = answers.answer_to("lora")
        if answer.holds is False and answer.names:
            message = f"`all-linear` leaves layers of a model of type `{kind}` without an adapter"
            fix = Fix("name them in `model.lora.target_modules` or `target_parameters`, or accept it")
            yield Finding("MD166", "warning", message, "model.lora.target_modules", notes=(*answer.names,), fix=fix)
        whole = answers.answer_to(question)
        if question == "qlora" and whole.holds is False and whole.names:
            message = f"some weights of a model of type `{kind}` stay in 16 bits"
            yield Finding("MD166", "warning", message, "model.quantization", notes=(*whole.names,))
    loads = answers.answer_to("zero3" if spec.zero.stage == 3 else "export")
    if spec.model.name_or_path is not None and not spec.model.random_init and loads.holds is False:
        message = f"weights of a model of type `{kind}` are not loaded as they were saved"
        yield Finding("MD167", "warning", message, "model.name_or_path", notes=(loads.reason, *loads.names))
    if spec.train.gradient_checkpointing and answers.answer_to("checkpointing").holds is False:
        answer = answers.answer_to("checkpointing")
        message = f"recomputed layers of a model of type `{kind}` do not give the same numbers"
        fix = Fix("set `train.gradient_checkpointing: false`")
        yield Finding("MD168", "warning", message, "train.gradient_checkpointing", notes=(answer.reason,), fix=fix)


def packing_finding(kind: str, apart: bool | None, reason: str) -> Finding:
    """The error (MD020) for a model that mixes packed documents, or is not known to keep them apart."""
    message = f"models of type `{kind}` attend across the documents of a packed row"
    if apart is None:
        message = f"models of type `{kind}` are not known to keep the documents of a packed row apart"
    fix = Fix("set `data.packing: false`", {_PACKING: False}, effect="more padding, fewer tokens a step")
    return Finding("MD020", "error", message, _PACKING, notes=(reason,), fix=fix)


def _not_causal(kind: str, causal: bool | None, reason: str, key: str, *, packing: bool) -> Iterator[Finding]:
    if causal is False:
        yield Finding(
            "MD164",
            "error",
            f"a model of type `{kind}` is not a causal language model, and a run trains the next token",
            key,
            notes=(reason,),
            fix=Fix("name a causal language model; BERT and its like are one with `is_decoder: true`"),
        )
        return
    yield Finding(
        "MD164",
        "warning",
        f"a model of type `{kind}` is not known to be a causal language model",
        key,
        notes=(reason,),
        fix=Fix("check it where `transformers` can build the model; the ranks do before they train"),
    )
    if packing and reason and not reason.startswith("only the ranks"):
        yield packing_finding(kind, None, reason)


def _not_at_hand(name: str) -> Iterator[Finding]:
    message = f"`{name}` is not on this machine, so it is not known whether it keeps packed documents apart"
    yield Finding("MD020", "info", message, _PACKING, notes=("the ranks ask the model before they train",))
