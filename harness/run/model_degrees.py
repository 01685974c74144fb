# SPDX-License-Identifier: Apache-2.0
"""Degrees above 1 against what is known of the model: a check before a launch, and every rank, say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.facts.pipeline_support import DIVIDED_IN_STAGES
from harness.findings import Finding, Fix
from harness.hostinfo.model_answers import Answer, ModelAnswers
from harness.spec.sections.zero_spec import ParallelSpec

_DEGREES = {
    "sequence": (
        "SQ101",
        "sequence_parallel_size",
        "is not split over a sequence group",
        "split over a sequence group",
    ),
    "tensor": ("TP027", "tensor_parallel_size", "is not divided by AutoTP", "divided by AutoTP as it should be"),
    "pipeline": ("PP101", "pipeline_parallel_size", "is no plain stack of layers", "a plain stack of layers"),
    "stages": (
        "PP106",
        "tensor_parallel_size",
        "is not divided over the tensor ranks of a pipeline stage",
        "divided over the tensor ranks of a pipeline stage",
    ),
}
"""By question: the finding, the key, what is wrong, and what is not known."""


def degrees_of(parallel: ParallelSpec, deepspeed: Mapping[str, Any]) -> list[str]:
    """The questions about degrees above 1. A plan of the run's own for AutoTP (`deepspeed`) is not that of the model;
    the layers of a pipeline are divided without AutoTP (`stages`, which `tensor` answers).
    """
    block = deepspeed.get("tensor_parallel")
    has_plan = isinstance(block, dict) and bool(block.get("preset_model") or block.get("partition_config"))
    has_stages = (parallel.pipeline_parallel_size or 1) > 1
    sizes = {
        "sequence": parallel.sequence_parallel_size,
        "tensor": 1 if has_plan or has_stages else parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "stages": parallel.tensor_parallel_size if has_stages else 1,
    }
    return [question for question, size in sizes.items() if isinstance(size, int) and size > 1]


def questions_of(degrees: Sequence[str]) -> list[str]:
    """Those that a model is asked."""
    return ["tensor" if degree == "stages" else degree for degree in degrees]


def degree_findings(kind: str, degrees: Sequence[str], answers: ModelAnswers) -> Iterator[Finding]:
    """An error for each degree that a model of this type does not take, or is not known to."""
    for degree in degrees:
        answer = answers.answer_to("tensor" if degree == "stages" else degree)
        if degree == "stages" and kind in DIVIDED_IN_STAGES:
            continue
        if answer.holds:
            continue
        gate, name, wrong, unknown = _DEGREES[degree]
        key = f"parallel.{name}"
        text = wrong if answer.holds is False else f"is not known to be {unknown}"
        notes = (answer.reason, *([f"its layers: {', '.join(answer.names)}"] if answer.names else []))
        fix = Fix(f"set `{key}: 1`", {key: 1}, effect="more data-parallel ranks; `zero.stage: 3` for large models")
        yield Finding(gate, "error", f"a model of type `{kind}` {text}", key, notes=notes, fix=fix)


def unasked_degrees(name: str, degrees: Sequence[str]) -> Iterator[Finding]:
    """A note for each degree of a model that is not on this machine, which the ranks ask."""
    for degree in degrees:
        gate, key, _, unknown = _DEGREES[degree]
        message = f"`{name}` is not on this machine, so it is not known whether it is {unknown}"
        yield Finding(gate, "info", message, f"parallel.{key}", notes=("the ranks ask the model before they train",))


OWN_CODE = Answer(None, "it has code of its own, which is asked about packing and pipelines alone")
"""To questions about other degrees."""
