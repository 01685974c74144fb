# SPDX-License-Identifier: Apache-2.0
"""The targets of `model.lora` against the names of the model's modules, where its configuration is on this machine.

The ranks refuse the same (MD152, and MD155 where `peft` does) once they have built the model. Families without a
formula, experts and models with other code are left to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.facts.model_facts import ModelFacts
from harness.findings import Finding, Fix
from harness.plan.weights.trainable_split import DEFAULT_TARGETS, is_target
from harness.run.resolved_run import ResolvedRun
from harness.spec.named_paths import is_placeholder
from harness.spec.sections.model_spec import LoraSpec

_KEY = "model.lora.target_modules"
_HEADS = ("lm_head", "embed_out")
"""Heads, which have no weight of their own where they are tied."""


def check_adapter_targets(run: ResolvedRun) -> list[Finding]:
    """The findings about targets that are no modules of the model (MD152 one of several, MD155 all of them or another
    kind of module).
    """
    model = run.spec.model
    lora = model.lora
    if lora is None or lora.target_modules is None or model.trust_remote_code:
        return []
    if model.name_or_path is not None and is_placeholder(model.name_or_path):
        return []
    facts = run.find_model().facts
    if facts is None or facts.experts or "language_model" in facts.layer_path:
        return []
    try:
        return list(_check_targets(lora, facts))
    except re.error:  # a pattern that `peft` refuses, too
        return []


def _check_targets(lora: LoraSpec, facts: ModelFacts) -> Iterator[Finding]:
    matrices = [p.name.removesuffix(".weight") for p in facts.parameters() if len(p.shape) == 2]
    matrices += [head for head in _HEADS if head not in matrices]
    usual = ", ".join(DEFAULT_TARGETS.get(facts.family, _own_names(matrices)[:2]))
    fix = Fix(f"name modules of the model, such as `[{usual}]`, or `all-linear`")
    names = ", ".join(f"`{name}`" for name in _own_names(matrices) if name not in _HEADS)
    notes = (f"the layers and embeddings of `{facts.family}` are {names}",)
    if not any(is_target(module, facts, lora) for module in matrices):
        message = f"`peft` finds no module of this model for adapters with {_quote_targets(lora)}"
        yield Finding("MD155", "error", message, _KEY, notes=notes, fix=fix)
        return
    parts = {part for p in facts.parameters() for part in _enclosing_modules(p.name)} - {*matrices}
    for target in lora.target_modules if isinstance(lora.target_modules, tuple) else ():
        if _is_end(target, parts):
            message = f"`{target}` is neither a linear layer nor an embedding, so `peft` refuses it"
            yield Finding("MD155", "error", message, _KEY, notes=notes, fix=fix)
        elif not _is_end(target, matrices):
            message = f"`{target}` in `{_KEY}` matches no module of the model"
            yield Finding("MD152", "error", message, _KEY, notes=notes, fix=fix)


def _enclosing_modules(name: str) -> Iterator[str]:
    """The modules that a parameter lies in: `a.b` and `a` of `a.b.weight`."""
    while name := name.rpartition(".")[0]:
        yield name


def _is_end(target: str, modules: Iterable[str]) -> bool:
    return any(module == target or module.endswith(f".{target}") for module in modules)


def _own_names(modules: list[str]) -> list[str]:
    """The last parts of the names, each once."""
    return list(dict.fromkeys(module.rpartition(".")[2] for module in modules))


def _quote_targets(lora: LoraSpec) -> str:
    targets = lora.target_modules
    text = targets if isinstance(targets, str) else f"[{', '.join(targets or ())}]"
    others = [key for key in ("exclude_modules", "layers_to_transform") if getattr(lora, key) is not None]
    return " and ".join([f"`target_modules: {text}`", *(f"`{key}`" for key in others)])
