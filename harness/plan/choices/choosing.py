"""Asks every file of this folder what it would choose for a run, and puts the answers into the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.facts.models import ModelFacts, find
from harness.plan.choices import (
    leaf_modules,
    live_parameters,
    loss_chunks,
    parameter_buffers,
    persistence,
    pipelined_swapping,
    prefetch,
    reduce_bucket,
    reuse_distance,
    sub_group,
)
from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts
from harness.plan.run import Run
from harness.plan.settings import settings_of

_ALL: tuple[Callable[[Facts], Choice | tuple[Choice, ...] | None], ...] = (
    reduce_bucket.choose,
    leaf_modules.choose,
    persistence.choose,
    prefetch.choose,
    reuse_distance.choose,
    live_parameters.choose,
    sub_group.choose,
    pipelined_swapping.choose,
    parameter_buffers.choose,
    loss_chunks.choose,
)
"""Tried and not chosen: `use_multi_rank_bucket_allreduce: false`, see `benchmarks/LOG.md`."""


def with_choices(run: Run, base_dir: Path | None = None) -> Run:
    """The run with what is chosen for it; unchanged where that was done before. `base_dir` as for `make_plan`.

    A model that only `transformers` can count is taken for unknown: building it takes seconds.
    """
    if run.choices is not None:
        return run
    spec = run.spec.model
    found = find(spec.name_or_path, spec.config, base_dir, spec.revision)
    return run._replace(choices=choices_for(run, found.facts))


def choices_for(run: Run, model: ModelFacts | None) -> tuple[Choice, ...]:
    """What is chosen for a run. Nothing with `choices: false`, and nothing for a DeepSpeed JSON, whose silence means
    DeepSpeed's defaults.
    """
    if not run.spec.choices or run.kind != "spec":
        return ()
    facts = Facts(run, None if model is None or model.built else model, settings_of(run))
    found = (choose(facts) for choose in _ALL)
    return tuple(c for one in found if one is not None for c in ((one,) if isinstance(one, Choice) else one))
