# SPDX-License-Identifier: Apache-2.0
"""Questions to `harness plan` without a spec, drawn by a seed: model, GPUs, host memory, disks, length, batch."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from harness.check.auto_plan import SearchResult, check_request, find_best_plan, name_of
from harness.facts.model_lookup import find_model
from harness.plan.planner import Plan, make_plan
from harness.plan.search.alternatives import Alternative
from harness.plan.search.plan_request import PlanRequest
from harness.plan.search.settings_search import EQUAL_SPEED, fits_with_headroom
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec

SEED = 20261125
Question = PlanRequest
MODELS = (
    "qwen2.5-0.5b",
    "llama-3.2-1b",
    "qwen3-4b",
    "mistral-7b-v0.3",
    "llama-3.1-8b",
    "gemma-2-9b",
    "phi-4",
    "gemma-3-27b-pt",
    "qwen3-32b",
    "llama-3.1-70b",
    "qwen2.5-72b",
    "llama-3.1-405b",
    "mixtral-8x7b-v0.1",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "gpt-oss-120b",
    "deepseek-v3",
)
GPUS = ("A100-40GB", "A100-80GB", "H100-80GB", "H200", "B200", "L40S", "RTX4090", "V100-32GB", "MI300X")
COUNTS = (1, 2, 4, 8, 8, 16, 32, 48, 64, 128, 256, 1024, 4096)
HOST_MEMORY = ("256GB", "512GB", "1TB", "2TB", "2TB", None)
DISKS = ("8x3.5TB", None, None)
LENGTHS = (1024, 2048, 4096, 8192, 32768)
BATCH_TOKENS = (1 << 18, 1 << 20, 1 << 22, 1 << 24)


def draw_questions(count: int, seed: int = SEED) -> list[Question]:
    """The first so many questions of a seed."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    return [_draw(draw) for _ in range(count)]


def _draw(draw: random.Random) -> Question:
    length = draw.choice(LENGTHS)
    return Question(
        model=draw.choice(MODELS),
        gpus=draw.choice(COUNTS),
        gpu=draw.choice(GPUS),
        host_memory=draw.choice(HOST_MEMORY),
        nvme=draw.choice(DISKS),
        max_length=length,
        tokens_per_step=draw.choice(BATCH_TOKENS),
    )


def search(question: Question) -> tuple[dict[str, Any], SearchResult]:
    """The spec of the question before the search, and what the search found."""
    raw, checked = check_request(question)
    assert checked.run is not None, checked.report.findings
    result = find_best_plan(checked.run, raw, name_of(question), None)
    assert result is not None
    return raw, result


class Answer(NamedTuple):
    """`outcome` in words; `num_compared` rows with the plans of their specs."""

    outcome: str
    num_compared: int
    disagreements: tuple[str, ...]


def ask(question: Question, rows: random.Random) -> Answer:
    """What the search says and the plan of the written spec does not: of the best, and of two other rows of the list.
    And rows of the output that fit and are faster than the best.
    """
    raw, result = search(question)
    some = rows.sample(result.alternatives, min(2, len(result.alternatives)))
    texts = [text for row in some for text in _compare(row, _plan_of(raw, row, question))]
    if result.best is None or result.plan is None:
        return Answer("the gates refuse all" if result.nearest_fit is None else "nothing fits", len(some), tuple(texts))
    texts += _compare(result.best, result.plan) + _compare(result.best, _plan_of(raw, result.best, question))
    others = make_plan(result.plan.run, with_search=False).alternatives
    shown = [*result.usable, *(each for each in others if result.refusal_of(each) is None)]
    best = _seconds(result.best)
    for row in shown:
        if fits_with_headroom(row) and _seconds(row) < best * (1 - EQUAL_SPEED):
            texts.append(f"{row.title} fits and takes {_seconds(row)} s, the best {best} s")
    return Answer("something fits", len(some) + 1, tuple(texts))


def _plan_of(raw: dict[str, Any], row: Alternative, question: Question) -> Plan:
    lookup = find_model(question.model).facts
    assert lookup is not None
    spec = RunSpec.model_validate(merge_changes(raw, spec_changes_for(row.settings, lookup, raw)))
    return make_plan(resolve_run(spec, world_size=question.gpus), with_alternatives=False)


def _compare(row: Alternative, plan: Plan) -> list[str]:
    assert plan.memory is not None
    said = (_seconds(row), row.gpu_peak, row.host_peak, row.nvme_bytes, row.fit)
    seconds = plan.time.seconds if plan.time else 0.0
    planned = (seconds, plan.memory.gpu_peak, plan.memory.host_peak, plan.memory.nvme_bytes, plan.fit)
    return [] if said == planned else [f"{row.title}: the search says {said}, the plan {planned}"]


def _seconds(row: Alternative) -> float:
    return row.time.seconds if row.time else 0.0
