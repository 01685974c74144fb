# SPDX-License-Identifier: Apache-2.0
"""Drawn degrees over the whole catalogue: a plan that adds up, or sentences. Needs nothing; some seconds."""

from __future__ import annotations

import json
import math
import random
from functools import cache

import pytest

from harness.errors import UserError
from harness.facts.model_catalogue import CATALOGUE
from harness.facts.model_lookup import find_model
from harness.findings import Finding
from harness.plan.degrees.degrees_plan import DegreesPlan, plan_degrees
from harness.plan.degrees.degrees_request import CHOICES, DegreesRequest
from harness.plan.degrees.rank_groups import ParallelDegrees
from harness.views.plan_degrees import degrees_as_dict, render_degrees
from harness.views.style import Style

DRAWS = 400


@cache
def known_models() -> list[str]:
    return sorted(name for name in CATALOGUE if find_model(name).facts is not None)


def draw_request(draw: random.Random) -> DegreesRequest:
    """Mostly powers of two, which go together; sometimes something else."""

    def degree(most: int) -> int:
        return draw.choice([1, 1, 2, 4, 8, 16, 3][:most])

    schedule = draw.choice(CHOICES["--schedule"])
    degrees = ParallelDegrees(
        2 ** draw.randint(0, 14),
        tensor=degree(7),
        pipeline=degree(7),
        context=degree(4),
        expert=draw.choice([1, 1, 1, 8, 16, 64]),
        virtual_stages=draw.choice([2, 3, 4]) if schedule == "interleaved" else 1,
        schedule=schedule,  # type: ignore[arg-type]
        sequence=draw.random() < 0.7,
        gpus_per_host=draw.choice([4, 8]),
    )
    return DegreesRequest(
        draw.choice(known_models()),
        draw.choice(["H100-80GB", "A100-80GB", "L40S-48GB"]),
        degrees,
        micro_batch=draw.choice([1, 2, 4]),
        tokens_per_step=float(2 ** draw.randint(16, 26)),
        seq_length=2 ** draw.randint(9, 17),
        precision=draw.choice(CHOICES["--precision"]),  # type: ignore[arg-type]
        checkpointing=draw.choice(CHOICES["--checkpointing"]),  # type: ignore[arg-type]
        zero_stage=draw.randint(0, 3),
        states=draw.choice(CHOICES["--states"]),  # type: ignore[arg-type]
    )


def check_plan(plan: DegreesPlan) -> None:
    """Every part is on some stage, nothing is negative, and the views show it."""
    degrees, model = plan.request.degrees, plan.model
    copies = 2 if degrees.schedule == "dualpipe" and degrees.pipeline > 1 else 1
    dense = degrees.tensor * sum(stage.parameters.dense for stage in plan.memory)
    experts = degrees.expert * sum(stage.parameters.experts for stage in plan.memory)
    assert dense + experts >= copies * model.num_parameters * 0.999
    assert sum(len(stage.stage.layers) for stage in plan.memory) == copies * model.num_layers
    numbers = [item.bytes for stage in plan.memory for item in stage.items]
    numbers += [amount for each in plan.work.traffic for amount in (each.link_bytes, each.network_bytes, each.payload)]
    numbers += [amount for _, seconds, exposed in plan.time.parts for amount in (seconds, exposed)]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert plan.time.seconds > 0
    assert 0 < plan.mfu < 1
    for each in plan.work.traffic:
        assert each.ranks > 1
        assert (each.network_bytes == 0) == each.within_host
    json.dumps(degrees_as_dict(plan, 1e12, 2.0, []), allow_nan=False)
    assert render_degrees(plan, 1e12, 2.0, [], Style()).count("\n") > 10


def answer(request: DegreesRequest) -> tuple[DegreesPlan | None, tuple[Finding, ...]]:
    """The plan, or why there is none."""
    try:
        return plan_degrees(request), ()
    except UserError as error:
        return None, error.findings


@pytest.mark.parametrize("seed", range(4))
def test_a_drawn_request_is_planned_or_refused(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - the same draws each time
    planned = refused = 0
    for _ in range(DRAWS // 4):
        request = draw_request(draw)
        plan, findings = answer(request)
        if plan is None:
            assert findings
            assert all(finding.fix is not None and len(finding.message) < 200 for finding in findings)
            refused += 1
            continue
        check_plan(plan)
        planned += 1
    assert planned >= 10
    assert refused >= 10
