# SPDX-License-Identifier: Apache-2.0
"""The model of a run against its objective: is it a causal language model, and does it keep packed documents apart?

Where the tables do not know, the model is asked (`harness.hostinfo.model_answers`). The ranks ask the same before they
train, so a model whose configuration is not on this machine is left to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.language_model import find_answers
from harness.facts.model_lookup import find_configuration
from harness.findings import Finding, Fix
from harness.spec.named_paths import is_placeholder
from harness.spec.run_spec import RunSpec

_PACKING = "data.packing"


def check_model_kind(spec: RunSpec) -> list[Finding]:
    """The findings MD164 (not a causal language model) and MD020 (packing). None where a plug-in builds the model."""
    model, packing = spec.model, spec.data.packing
    if spec.plugins.file is not None or (model.name_or_path is not None and is_placeholder(model.name_or_path)):
        return []
    config = find_configuration(model.name_or_path, model.config, None, model.revision)
    if config is None:
        return list(_not_at_hand(model.name_or_path)) if packing and model.name_or_path else []
    kind = config.get("model_type")
    if not isinstance(kind, str):  # MD102 and the plan say so
        return []
    answers = find_answers(config, packing=packing, own_code=model.trust_remote_code)
    key = "model.config" if model.config is not None else "model.name_or_path"
    if answers.causal is not True:
        return list(_not_causal(kind, answers.causal, answers.why_causal, key, packing=packing))
    if packing and answers.apart is not True:
        return [packing_finding(kind, answers.apart, answers.why_apart)]
    return []


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
