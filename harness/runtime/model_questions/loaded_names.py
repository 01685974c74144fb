# SPDX-License-Identifier: Apache-2.0
"""Do the names of a saved file load back, all of them: by `AutoModelForCausalLM`, by the class in `architectures`, and
into the shards of ZeRO-3?
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import deepspeed
import torch
import transformers
from transformers import AutoModelForCausalLM

from harness.hostinfo.model_answers import Answer
from harness.runtime.model_questions.rank_pair import ask_ranks
from harness.runtime.model_questions.small_copy import SmallCopy, join_names
from harness.runtime.models.pretrained import load_pretrained
from harness.spec.sections.model_spec import ModelSpec

_ZERO3 = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}


def ask(small: SmallCopy) -> Answer:
    """Every tensor of the copy after a save and a load by each of both classes."""
    folder = small.saved
    named = json.loads((folder / "config.json").read_text()).get("architectures") or [""]
    classes: dict[str, Any] = {
        "AutoModelForCausalLM": AutoModelForCausalLM,
        named[0]: getattr(transformers, named[0], None),
    }
    for name, loader in classes.items():
        if loader is None:
            return Answer(False, f"`architectures` names `{name}`, which `transformers` does not have")
        model, report = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[kind]:
                return Answer(False, f"by `{name}` it has {kind.replace('_', ' ')}", join_names(map(str, report[kind])))
        wrong = _other_values(small.model, dict(model.named_parameters()))
        if wrong:
            return Answer(False, f"by `{name}` weights are others than those in the file", wrong)
    return Answer(True, "by `AutoModelForCausalLM` and the class in `architectures`, every tensor")


def ask_at_zero3(small: SmallCopy) -> Answer:
    """The same by the loader of this program, into shards."""
    folder = small.saved

    def compare(_: int) -> dict[str, Any]:
        model = load_pretrained(ModelSpec(name_or_path=str(folder)), small.model.built_from, _ZERO3, {})
        parameters = dict(model.named_parameters())
        with deepspeed.zero.GatheredParameters(list(parameters.values())):
            return {"wrong": _other_values(small.model, parameters)}

    answers = ask_ranks(compare, 1, small.folder / "zero3")
    wrong = tuple(answers[0]["wrong"])
    if wrong:
        return Answer(False, "weights are others than those in the file", wrong)
    return Answer(True, "every tensor is that of the file")


def _other_values(model: Any, found: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Names of the model's parameters that are missing among `found`, or differ there."""
    expected = dict(model.named_parameters())
    return join_names(n for n, p in expected.items() if n not in found or not torch.equal(found[n].detach(), p))
