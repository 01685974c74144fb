# SPDX-License-Identifier: Apache-2.0
"""The model of a run against what the run does with it: the next token, packed documents, parallel degrees, adapters.

Where the table does not know, the model is asked (`harness.hostinfo.model_answers`). The ranks ask the same before they
train, so a model whose configuration is not on this machine is left to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import input_limits
from harness.facts.language_model import NOT_CAUSAL_FIX, find_answers, packing_answer
from harness.facts.model_lookup import find_configuration
from harness.file_io import read_regular
from harness.findings import Finding, Fix
from harness.hostinfo.model_answers import Answer, ModelAnswers
from harness.run.model_degrees import OWN_CODE, degree_findings, degrees_of, questions_of, unasked_degrees
from harness.run.objective_facts import facts_of
from harness.spec.named_paths import is_placeholder
from harness.spec.run_spec import RunSpec

_PACKING = "data.packing"


def check_model_kind(spec: RunSpec) -> list[Finding]:
    """The findings MD164 (not a causal language model), MD020 (packing), SQ101, TP027, PP101 and PP106 (degrees), MD166
    (adapters), MD167 (weights) and MD168 (recomputation). None where a plug-in builds the model, which the ranks ask.
    """
    model, packing = spec.model, spec.data.packing
    if facts_of(spec.objective).has_label_head:  # the ranks ask `transformers` for its class
        return []
    if _builds_model(spec.plugins.file) or (model.name_or_path is not None and is_placeholder(model.name_or_path)):
        return []
    config = find_configuration(model.name_or_path, model.config, None, model.revision)
    degrees = degrees_of(spec.parallel, spec.deepspeed)
    if config is None:
        name = model.name_or_path
        return [] if not name else [*(_not_at_hand(name) if packing else ()), *unasked_degrees(name, degrees)]
    kind = config.get("model_type")
    if not isinstance(kind, str):  # MD102 and the plan say so
        return []
    own_code = model.trust_remote_code and "auto_map" in config
    answers = find_answers(config, (*(["apart"] if packing else []), *questions_of(degrees)), own_code=own_code)
    key = "model.config" if model.config is not None else "model.name_or_path"
    findings = [] if answers.causal else list(_not_causal(kind, answers.causal, answers.why_causal, key))
    if answers.causal is False:
        return findings
    if config.get("is_encoder_decoder") is True and not own_code:
        findings += _decoder_alone(kind, key, is_random=model.name_or_path is None or model.random_init)
    packed = packing_answer(answers, whole_rows=not {"sequence", "pipeline"} & {*degrees})
    if packing and not packed.holds:
        findings.append(packing_finding(kind, packed, own_code=own_code))
    if own_code:  # whose packing and layers the ranks ask
        degrees = [degree for degree in degrees if degree != "pipeline"]
        answers = answers._replace(others=dict.fromkeys(("sequence", "tensor"), OWN_CODE))
    findings += degree_findings(kind, degrees, answers)
    return [*findings, *(_layer_findings(spec, kind, answers) if answers.causal else ())]


def _builds_model(plugin: str | None) -> bool:
    """May this plug-in have a `build_model`? Its text says so; nothing runs it here."""
    if plugin is None:
        return False
    try:
        return "build_model" in read_regular(Path(plugin), input_limits.CONFIGURATION).decode(errors="replace")
    except (OSError, ValueError):  # which the ranks refuse
        return True


def _layer_findings(spec: RunSpec, kind: str, answers: ModelAnswers) -> Iterator[Finding]:
    """Warnings about what is known to go wrong, of a model that nobody asks for these alone."""
    lora = spec.model.lora
    if lora is not None and lora.target_modules == "all-linear":
        question = "qlora" if spec.model.quantization is not None else "lora"
        answer = answers.answer_to("lora")
        if answer.holds is False and answer.names:
            message = f"`all-linear` leaves layers of a model of type `{kind}` without an adapter"
            fix = Fix("name linear layers in `model.lora.target_modules`, or accept it")
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


def packing_finding(kind: str, packed: Answer, *, own_code: bool = False) -> Finding:
    """The error (MD020) for a model that mixes packed documents, or is not known to keep them apart; a note for one
    whose kernels are installed, a warning for code of its own: these the ranks ask.
    """
    if packed.holds is None and packed.names:
        message = f"models of type `{kind}` keep packed documents apart by their kernels alone"
        return Finding("MD020", "info", message, _PACKING, notes=(packed.reason,))
    message = f"models of type `{kind}` attend across the documents of a packed row"
    if packed.holds is None:
        message = f"models of type `{kind}` are not known to keep the documents of a packed row apart"
    fix = Fix("set `data.packing: false`", {_PACKING: False}, effect="more padding, fewer tokens a step")
    return Finding("MD020", "warning" if own_code else "error", message, _PACKING, notes=(packed.reason,), fix=fix)


def _not_causal(kind: str, causal: bool | None, reason: str, key: str) -> Iterator[Finding]:
    if causal is False:
        yield Finding(
            "MD164",
            "error",
            f"a model of type `{kind}` is not a causal language model, and a run trains the next token",
            key,
            notes=(reason,),
            fix=Fix(NOT_CAUSAL_FIX),
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


def _decoder_alone(kind: str, key: str, *, is_random: bool) -> Iterator[Finding]:
    """Of an encoder-decoder whose type has a causal class too: the configuration of a decoder says that it is none."""
    message = f"a model of type `{kind}` with `is_encoder_decoder: true` is an encoder-decoder, and a run trains the "
    message += "next token"
    note = "`AutoModelForCausalLM` builds its decoder alone: " + (
        "that is what trains, from random weights"
        if is_random
        else "weights of the encoder and what both share are lost"
    )
    fix = Fix("save the decoder by its causal class, whose configuration has `is_decoder: true`, or name another model")
    yield Finding("MD164", "warning" if is_random else "error", message, key, notes=(note,), fix=fix)


def _not_at_hand(name: str) -> Iterator[Finding]:
    message = f"`{name}` is not on this machine, so it is not known whether it keeps packed documents apart"
    yield Finding("MD020", "info", message, _PACKING, notes=("the ranks ask the model before they train",))
